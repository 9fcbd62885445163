"""Reports as one HTML page: no scripts, nothing loaded from elsewhere, readable in light, in dark, on paper and on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import quote

from dplinked.report.words import clean, is_number

_STYLE = """
:root { --ink: #1b1f24; --faint: #4d5662; --line: #cdd3da; --page: #ffffff; --stripe: #f4f6f8;
  --alarm-ink: #7a1200; --alarm-page: #fdeeea; --alarm-line: #c0341a; --link: #0b5cad; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --faint: #aab4c0; --line: #3d4753; --page: #14181d; --stripe: #1c2229;
    --alarm-ink: #ffd2c7; --alarm-page: #3a1710; --alarm-line: #ff7a5c; --link: #7ab8ff; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.25rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p, ol, ul { max-width: 46rem; margin: .5rem 0; overflow-wrap: anywhere; }
ol, ul { padding-left: 1.5rem; }
a { color: var(--link); }
.warning { max-width: none; margin: 0 0 1.5rem; padding: .75rem 1rem; font-weight: 600; color: var(--alarm-ink);
  background: var(--alarm-page); border: 1px solid var(--alarm-line); border-left-width: .4rem; border-radius: .25rem; }
.scroll { overflow-x: auto; margin: .75rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: .25rem; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--line); color: var(--faint); font-weight: 600; }
tbody th { font-weight: 500; min-width: 8.5rem; max-width: 22rem; overflow-wrap: anywhere; }
.many th, .many td { padding: .3rem .35rem; }
.many tbody th { min-width: 5rem; }
.facts td { overflow-wrap: anywhere; }
tbody tr:nth-child(even) { background: var(--stripe); }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
h3 { font-size: 1rem; line-height: 1.4; margin: 1.5rem 0 .25rem; }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { margin: 0; padding: .75rem; width: max-content; min-width: 100%; background: var(--stripe); tab-size: 2; }
details { margin: .75rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .25rem 0; }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
li { margin: .25rem 0; }
.lead { font-size: 1.2rem; line-height: 1.45; max-width: 50rem; }
figure { margin: 1rem 0; }
.wide { display: none; }
@media screen and (min-width: 62rem) { .wide { display: block; } .narrow { display: none; } }
figcaption { max-width: 46rem; margin-top: .25rem; font-size: .9375rem; color: var(--faint); overflow-wrap: anywhere; }
figure svg { display: block; max-width: 100%; height: auto; overflow: visible; }
@media screen and (max-width: 40rem) {
  table { font-size: .9375rem; width: 100%; }
  th, td { padding: .3rem .4rem; }
  td, td.number { white-space: normal; overflow-wrap: anywhere; }
  tbody th { min-width: 6.5rem; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; width: auto; }
  .cards, .cards tbody, .cards tr, .cards tbody th { display: block; max-width: none; }
  .cards thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .cards tr { padding: .35rem 0; border-bottom: 1px solid var(--line); }
  .cards tbody th { font-weight: 600; border: 0; padding: .1rem .25rem; }
  .cards td { display: flex; justify-content: space-between; gap: 1rem; text-align: right; border: 0; padding: .1rem .25rem; }
  .cards td::before { content: attr(data-label); color: var(--faint); text-align: left; }
  .cards td:empty { display: none; }
}
@media print {
  @page { margin: 15mm; }
  html { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  tr, .warning { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  figure { break-inside: avoid; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; width: auto; }
  details:not([open]), .folded > h2, a[download] { display: none; }
  .warning, tbody tr:nth-child(even) { -webkit-print-color-adjust: exact; }
}
""".strip()

# Notebooks have colours of their own: everything here takes theirs.
_CELL_STYLE = """
.dplinked { max-width: 60rem; line-height: 1.45; }
.dplinked p { margin: .4rem 0; overflow-wrap: anywhere; }
.dplinked .scroll { overflow-x: auto; margin: .5rem 0; }
.dplinked table { border-collapse: collapse; margin: 0; font-variant-numeric: tabular-nums; border: none; }
.dplinked table th, .dplinked table td { padding: .2rem .7rem; text-align: left; background: none; border: none;
  border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
.dplinked table .number { text-align: right; white-space: nowrap; }
.dplinked figure { margin: .5rem 0; }
.dplinked figure svg { display: block; max-width: 100%; height: auto; overflow: visible; }
.dplinked .wide { display: none; }
.dplinked summary { cursor: pointer; font-weight: 600; }
""".strip()

_SMALL = re.compile(r"(?<![\w.])\d[\d.]*e-\d+\b")  # such as 1e-06: browsers would break the line after its hyphen
_MANY = 7  # columns beyond which a table's cells are set closer

# A browser that is shown something foreign all the same neither runs nor loads it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, body: str, *, warning: str | None = None, style: str = "") -> str:
    """A whole HTML document.

    Parameters
    ----------
    title
        Text; its characters stand for themselves.
    body
        HTML, made by :func:`paragraph`, :func:`table` and the like.
    warning
        Text that stands before everything else.
    style
        Style sheet that is added to the page's own.
    """
    shown = "" if warning is None else f'<p class="warning" role="note">{to_html(warning)}</p>\n'
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{to_html(title)}</title>\n<style>\n{_STYLE}\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{shown}<h1>{to_html(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def notebook_cell(*parts: str) -> str:
    """HTML for a cell of a notebook, with a style that holds for nothing else."""
    return "\n".join(['<div class="dplinked">', f"<style>\n{_CELL_STYLE}\n</style>", *parts, "</div>"])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, label: str = "") -> str:
    """A table that scrolls within the page. The first cell of a row names it; cells that hold numbers go to the right.

    Parameters
    ----------
    header
        Column names; none for a list of facts.
    label
        What a screen reader calls the table.
    """
    lines = [f'<div class="scroll" role="region" tabindex="0" aria-label="{to_html(label or "table")}">']
    cards = len(header) > 2  # on a phone, each row stands for itself; the roles keep the table one for screen readers
    kind, line, head, name_of, cell_of = (
        (
            f' class="cards{" many" * (len(header) > _MANY)}" role="table"',
            ' role="row"',
            ' role="columnheader"',
            ' role="rowheader"',
            ' role="cell"',
        )
        if cards
        else ("" if header else ' class="facts"', "", "", "", "")
    )
    lines[0] += f"<table{kind}>"
    if header:
        numeric = [all(is_number(row[k]) for row in rows) for k in range(len(header))]
        cells = [_cell("th", name, k > 0 and numeric[k], f' scope="col"{head}') for k, name in enumerate(header)]
        lines.append(f"<thead><tr{line}>{''.join(cells)}</tr></thead>")
    labels = [f'{cell_of} data-label="{to_html(name)}"' if cards else "" for name in header] or [""] * 99
    lines.append("<tbody>")
    for row in rows:
        cells = [_cell("th", row[0], False, f' scope="row"{name_of}')]
        cells += [_cell("td", cell, bool(header) and is_number(cell), labels[k]) for k, cell in enumerate(row[1:], 1)]
        lines.append(f"<tr{line}>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{to_content(text)}</p>"


def lead(text: str) -> str:
    """A paragraph that stands first, in larger letters."""
    return f'<p class="lead">{to_content(text)}</p>'


def ordered_list(items: Sequence[str]) -> str:
    """A numbered list of texts."""
    return "<ol>" + "".join(f"<li>{to_content(item)}</li>" for item in items) + "</ol>"


def unordered_list(items: Sequence[str]) -> str:
    """A list of texts."""
    return "<ul>" + "".join(f"<li>{to_content(item)}</li>" for item in items) + "</ul>"


def figure(svg: str, caption: str = "") -> str:
    """A drawing, made by :mod:`dplinked.report.charts` or :mod:`dplinked.report.plots`, and a text under it."""
    under = f"<figcaption>{to_html(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{under}</figure>"


def chart(draw: Callable[[], str], caption: str = "", wide: Callable[[], str] | None = None) -> str:
    """A drawing and a text under it, or a sentence where there is no plotting library. `wide` is the drawing that a wide page shows instead."""
    try:
        if wide is not None:
            return figure(f'<div class="narrow">{draw()}</div><div class="wide">{wide()}</div>', caption)
        return figure(draw(), caption)
    except ImportError:
        return paragraph("A chart would stand here: pip install matplotlib.")


def section(title: str, *parts: str, folded: bool = False) -> str:
    """A heading and the HTML that belongs to it; `folded` if all of that is shown when asked for, and then printed."""
    start = '<section class="folded">' if folded else "<section>"
    return "\n".join([f"{start}\n<h2>{to_html(title)}</h2>", *(part for part in parts if part), "</section>"])


def heading(text: str) -> str:
    """A heading within a section."""
    return f"<h3>{to_html(text)}</h3>"


def details(summary: str, *parts: str) -> str:
    """HTML that is shown when asked for."""
    return "\n".join(
        [f"<details><summary>{to_html(summary)}</summary>", *(part for part in parts if part), "</details>"]
    )


def code_block(text: str, label: str) -> str:
    """Lines of text to copy, as they are."""
    lines = "\n".join(to_html(line) for line in text.rstrip("\n").split("\n"))
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{to_html(label)}"><pre>{lines}</pre></div>'


def download(text: str, file: str, kind: str) -> str:
    """A link that saves a text as a file. The page carries the text itself, so nothing is loaded."""
    content = quote(text.encode("utf-8", "replace"), safe="")
    return (
        f'<p><a download="{to_html(file)}" href="data:{kind};charset=utf-8,{content}">Save as {to_html(file)}</a></p>'
    )


def to_html(text: str) -> str:
    """Text whose characters stand for themselves in HTML, attributes included."""
    return escape(clean(text), quote=True)


def to_content(text: str) -> str:
    """Text within an element: its characters stand for themselves, and no line is broken within a number."""
    return _SMALL.sub(r'<span style="white-space:nowrap">\g<0></span>', to_html(text))


def _cell(tag: str, text: str, number: bool, attributes: str = "") -> str:
    kind = ' class="number"' if number else ""
    return f"<{tag}{attributes}{kind}>{to_content(text)}</{tag}>"
