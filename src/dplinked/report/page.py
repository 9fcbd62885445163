"""Reports as one HTML page: no scripts, nothing loaded from elsewhere, readable in light, in dark, on paper and on a phone."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape

_JOINERS = "\u200c\u200d"  # invisible, but emoji and several scripts are written with them

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #4d5662; --line: #cdd3da; --page: #ffffff; --stripe: #f4f6f8;
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
tbody tr:nth-child(even) { background: var(--stripe); }
th.number, td.number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; }
figure svg { display: block; max-width: 100%; height: auto; overflow: visible; }
@media screen and (max-width: 32rem) {
  table { font-size: .875rem; }
  th, td { padding: .3rem .4rem; }
}
@media print {
  @page { margin: 15mm; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  tr, .warning { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  .warning, tbody tr:nth-child(even) { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
""".strip()

# A browser that is shown something foreign all the same neither runs nor loads it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, body: str, *, warning: str | None = None) -> str:
    """A whole HTML document.

    Parameters
    ----------
    title
        Text; its characters stand for themselves.
    body
        HTML, made by :func:`paragraph`, :func:`table` and the like.
    warning
        Text that stands before everything else.
    """
    shown = "" if warning is None else f'<p class="warning" role="note">{to_html(warning)}</p>\n'
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{to_html(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<main>\n"
        f"{shown}<h1>{to_html(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, label: str = "") -> str:
    """A table that scrolls within the page. The first cell of a row names it; cells that hold numbers go to the right.

    Parameters
    ----------
    header
        Column names; none for a list of facts.
    label
        What a screen reader calls the table.
    """
    lines = [f'<div class="scroll" role="region" tabindex="0" aria-label="{to_html(label or "table")}"><table>']
    if header:
        numeric = [all(is_number(row[k]) for row in rows) for k in range(len(header))]
        cells = [_cell("th", name, k > 0 and numeric[k], ' scope="col"') for k, name in enumerate(header)]
        lines.append(f"<thead><tr>{''.join(cells)}</tr></thead>")
    lines.append("<tbody>")
    for row in rows:
        cells = [_cell("th", row[0], False, ' scope="row"')]
        cells += [_cell("td", cell, bool(header) and is_number(cell)) for cell in row[1:]]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{to_html(text)}</p>"


def ordered_list(items: Sequence[str]) -> str:
    """A numbered list of texts."""
    return "<ol>" + "".join(f"<li>{to_html(item)}</li>" for item in items) + "</ol>"


def figure(svg: str) -> str:
    """A drawing, made by :mod:`dplinked.report.charts`."""
    return f"<figure>{svg}</figure>"


def to_html(text: str) -> str:
    """Text whose characters stand for themselves in HTML, attributes included."""
    return escape(clean(text), quote=True)


def clean(text: str) -> str:
    """Text on one line: characters that control a terminal, a parser or the direction of writing show as �."""
    return "".join(
        "�" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in _JOINERS else c for c in text
    )


def is_number(cell: str) -> bool:
    """Whether a cell holds figures and no words; a dash stands for a figure that is not there."""
    return cell == "-" or (any(c.isdigit() for c in cell) and not any(c.isalpha() for c in cell))


def _cell(tag: str, text: str, number: bool, attributes: str = "") -> str:
    kind = ' class="number"' if number else ""
    return f"<{tag}{attributes}{kind}>{to_html(text)}</{tag}>"
