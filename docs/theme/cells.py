"""Run a notebook's cells in this process, and write it with what they show as a page."""

from __future__ import annotations

import ast
import contextlib
import html
import io
from typing import Any


def run_cells(notebook: dict[str, Any]) -> list[tuple[str, Any]]:
    """What each code cell prints, and the value of its last expression; as in Jupyter, cells share their names."""
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, cell["id"], "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), space)
        shown.append((printed.getvalue(), value))
    return shown


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as Markdown, with outputs."""
    outputs = iter(run_cells(notebook))
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed, value = next(outputs)
        if printed:
            parts.append(_output(f"<pre>{html.escape(printed)}</pre>"))
        if value is not None:
            rich = getattr(value, "_repr_html_", None)
            parts.append(_output(rich() if rich else f"<pre>{html.escape(repr(value))}</pre>"))
    parts.insert(1, f"[Download the notebook]({name}.ipynb){{ .md-button download }}")
    return "\n\n".join(parts)


def _output(shown: str) -> str:
    """Raw HTML that Markdown leaves alone: without blank lines."""
    return '<div class="cell-output">' + "\n".join(line for line in shown.splitlines() if line.strip()) + "</div>"
