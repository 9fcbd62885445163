"""Write the tables of docs/command-line.md from the command line itself: python docs/theme/command_line.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "command-line.md"


def commands() -> Iterator[tuple[str, Any]]:
    """All commands by their full names."""
    import typer

    from dplinked.cli.main import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for part, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {part}")

    return walk(typer.main.get_command(app), "dplinked")


def table(command: Any) -> str:
    """Arguments and options of a command as a Markdown table."""
    lines = ["| | | default |", "|---|---|---|"]
    for setting in command.params:
        if setting.param_type_name == "argument":
            name = f"`{setting.name.upper()}{' …' if setting.nargs != 1 else ''}`"
        else:
            name = ", ".join(f"`{option}`" for option in setting.opts) + (" …" if setting.multiple else "")
        default = (
            "needed"
            if setting.required
            else ""
            if setting.default is None or setting.default is False
            else f"`{setting.default}`"
        )
        lines.append(f"| {name} | {setting.help} | {default} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with its tables as they should be."""
    known = dict(commands())
    for name, command in known.items():
        if f"<!-- {name} -->" not in text:
            raise SystemExit(
                f"docs/command-line.md lacks a section for '{name}', with <!-- {name} --> and <!-- end -->."
            )
        place = rf"(<!-- {name} -->\n).*?(?=<!-- end -->)"
        text = re.sub(place, lambda found, shown=command: f"{found[1]}\n{table(shown)}\n\n", text, flags=re.DOTALL)
    gone = set(re.findall(r"<!-- (dplinked[^>]*) -->", text)) - set(known)
    if gone:
        raise SystemExit(f"docs/command-line.md describes commands that are gone: {sorted(gone)}.")
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
