"""The same outside the studio: the commands and the Python lines that do what a page does."""

from __future__ import annotations

from htmltools import Tag, tags

from dplinked.studio.look import prose


def same(shell: str | None = None, python: str | None = None, study: str | None = None) -> Tag:
    """A part that can be unfolded, with the lines that do the same with the settings as they stand."""
    given = {"In a shell": shell, "In Python": python, "The study file": study}
    shown = [(title, lines) for title, lines in given.items() if lines]
    parts = [part for title, lines in shown for part in (tags.h3(title), _code(title, lines))]
    return tags.details(tags.summary("The same outside the studio"), *parts, class_="outside")


def _code(title: str, lines: str) -> Tag:
    return tags.pre(tags.code(prose(lines)), tabindex="0", role="region", aria_label=title)
