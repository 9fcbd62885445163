"""The documentation's pages as the studio serves them: from the package, without the network and without scripts.

Only pages that are listed here are served. Links between them lead to where they are served, and words stay of all other links: a page neither loads from, nor leads to, anywhere else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

import dplinked
from dplinked.report.page import code_block, page, paragraph, to_html

# As in the nav of mkdocs.yml.
SECTIONS = {
    "Start": {
        "index": "Home",
        "is-this-for-me": "Is this for me?",
        "compare": "How it compares",
        "ethics-board": "For your ethics board",
        "faq": "Questions",
        "glossary": "Glossary",
        "limits": "Limits",
    },
    "Tutorial": {
        "half-hour": "Half an hour, from your two files to a page",
        "mistakes": "Mistakes, and what is said about them",
        "tutorial": "From two files to a published coefficient",
    },
    "How to": {
        "choose-bounds": "Choose bounds",
        "choose-epsilon": "Choose ε",
        "know-your-links": "Know your links",
        "encodings": "Link files that may not be shared",
        "outcomes": "Model events and counts",
        "surveys": "Weight rows and study subgroups",
        "scaling": "Outgrow one machine",
        "studio": "Use the studio",
    },
    "Reference": {"study-file": "The study file", "command-line": "The command line"},
    "Explanation": {
        "privacy-promise": "The privacy promise",
        "security": "Security",
        "intervals": "Intervals",
        "linking": "Linking",
        "mathematics": "Mathematics",
        "paper-on-your-data": "The paper, on your data",
        "paper": "The paper, reproduced",
        "paper-line-by-line": "The paper, line by line",
    },
    "Project": {"cite": "Cite", "releasing": "How a release of dplinked is made"},
}
TITLES = {name: title for pages in SECTIONS.values() for name, title in pages.items()}

_PACKAGE = Path(dplinked.__file__).parent
_PACKAGED = _PACKAGE / "documentation"  # where hatch_build.py puts the pages
FOLDER = _PACKAGED if _PACKAGED.is_dir() else _PACKAGE.parents[1] / "docs"  # else the repository's own
_STYLE = Path(__file__).with_name("documentation.css").read_text(encoding="utf-8")


def address(place: str) -> str:
    """Where the studio serves a page, or a heading of it (``page#heading``), seen from its own page."""
    return f"help/{place}"


@cache
def render_page(name: str) -> str | None:
    """A page as HTML; None if there is no such page."""
    file = FOLDER / f"{name}.md"
    if name not in TITLES or not file.is_file():
        return None
    text = re.sub(r"\A---\n.*?\n---\n", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    title, _, rest = text.strip().partition("\n")
    reader = MarkdownIt("commonmark", renderer_cls=_Writer).enable("table")
    tokens = reader.parse(rest)
    headings = [*_name_headings(tokens)]
    for token in tokens:
        token.children = [*_settle_links(token.children or ())]
    body = reader.renderer.render(tokens, reader.options, {})
    return _lay_out(title.removeprefix("# "), f"<article>\n{body}</article>", name, headings)


def render_absence() -> str:
    """The page that is shown where there is none."""
    return _lay_out("There is no such page", paragraph("These are the pages of the documentation."), None)


def _lay_out(title: str, body: str, name: str | None, headings: Sequence[tuple[str, str]] = ()) -> str:
    """A page, and beside it the list of all."""
    lists = "\n".join(
        f"<h3>{to_html(section)}</h3>\n<ul>{''.join(_entry(one, name, headings) for one in pages)}</ul>"
        for section, pages in SECTIONS.items()
    )
    way = '<p class="way"><a href="#pages">All pages</a></p>'
    return page(title, f'{way}\n{body}\n<nav id="pages" aria-label="All pages">\n{lists}\n</nav>', style=_STYLE)


def _entry(name: str, shown: str | None, headings: Sequence[tuple[str, str]]) -> str:
    """A page in the list of all; the one that is shown with its headings."""
    if name != shown:
        return f'<li><a href="{name}">{to_html(TITLES[name])}</a></li>'
    parts = "".join(f'<li><a href="#{slug}">{to_html(text)}</a></li>' for slug, text in headings)
    inner = f"<ul>{parts}</ul>" if parts else ""
    return f'<li><a href="{name}" aria-current="page">{to_html(TITLES[name])}</a>{inner}</li>'


# --- headings and links ----------------------------------------------------------------------------------


def slug(text: str) -> str:
    """The id of a heading, as the site has it."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _name_headings(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Give all headings their ids. Yields ids and texts of those of the second level."""
    used: set[str] = set()
    for k, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        text = "".join(part.content for part in tokens[k + 1].children or ())
        own, further = slug(text), 0
        name = own
        while name in used:
            further += 1
            name = f"{own}_{further}"
        used.add(name)
        token.attrSet("id", name)
        if token.tag == "h2":
            yield name, text


def _settle_links(parts: Sequence[Token]) -> Iterator[Token]:
    """Lead links to where pages are served. Of others the words stay, and the address if it is one of the internet."""
    leads, after = True, ""
    for part in parts:
        if part.type == "link_open":
            leads, after = _lead(part)
        if leads or part.type not in ("link_open", "link_close"):
            yield part
        if after and part.type == "link_close":
            yield Token("text", "", 0, content=after)
            after = ""


def _lead(link: Token) -> tuple[bool, str]:
    """Whether a link leads to a page that is served, and what is said after its words if it does not."""
    target = str(link.attrGet("href"))
    file, mark, heading = target.partition("#")
    name = file.removesuffix(".md")
    if file and (name == file or name not in TITLES):
        return False, f" ({target})" if ":" in target else ""
    link.attrSet("href", f"{name}{mark}{heading}")
    return True, ""


class _Writer(RendererHTML):
    """Markdown as HTML: tables and code scroll within themselves, and of HTML in the text only line breaks are kept."""

    def table_open(self, tokens: Sequence[Token], k: int, options: Any, env: Any) -> str:
        return f'<div class="scroll" role="region" tabindex="0" aria-label="{_count(env, "Table")}">\n<table>\n'

    def table_close(self, tokens: Sequence[Token], k: int, options: Any, env: Any) -> str:
        return "</table>\n</div>\n"

    def fence(self, tokens: Sequence[Token], k: int, options: Any, env: Any) -> str:
        return code_block(tokens[k].content, _count(env, "Lines of code")) + "\n"

    code_block = fence  # type: ignore[assignment]

    def html_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        content = tokens[idx].content
        return "<br>" if content == "<br>" else "" if content.startswith("<!--") else to_html(content)

    html_inline = html_block


def _count(env: Any, kind: str) -> str:
    """A name of its own for each table and each piece of code of a page."""
    env[kind] = env.get(kind, 0) + 1
    return f"{kind}, {env[kind]}"
