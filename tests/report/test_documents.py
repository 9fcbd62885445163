"""One document in every form that it is written in."""

from __future__ import annotations

from dplinked.report.document import (
    Bullets,
    Chart,
    Code,
    Column,
    Details,
    Document,
    Download,
    Facts,
    Heading,
    Notes,
    Part,
    Section,
    Steps,
    Table,
)
from dplinked.report.html import write_fragment, write_page
from dplinked.report.latex import write_table
from dplinked.report.markdown import write_markdown
from dplinked.report.text import WIDTH, write_lines, write_text
from pages import Reader

FITTED = Table(["group", "rows", "share"], [["a<b", "1,200", "60 %"], ["c|d", "-", "40 %"]], "Groups")
SET = Table(["", "coef"], [["x", "1.5"]], "Set", [Column(4, right=False), Column(8)], ruled=True)
PARTS: list[Part] = [
    "A paragraph.",
    Facts([("Rows", "12"), ("Left file", "a.csv")], "Facts"),
    FITTED,
    SET,
    Notes(["First note.", "Second note."]),
    Bullets(["one"]),
    Steps(["do", "check"]),
    Heading("Within"),
    Chart(lambda: "<svg></svg>", "Caption", ["a bar"]),
    Code("x = 1\n", "Code"),
    Download("1,2", "a.csv", "text/csv"),
    Details("More", ["hidden"]),
]
WHOLE = Document("Title", [Section("", ["Start."]), Section("Second", PARTS)], subject="y ~ x", warning="Careful.")


def test_text() -> None:
    lines = write_text(WHOLE).split("\n")
    assert lines[:2] == ["Careful.", ""]
    assert lines[2].strip() == "Title"
    assert lines[3:8] == ["=" * WIDTH, "Start.", "", "Second", "-" * WIDTH]
    assert "\n".join(lines[8:]) == "\n".join(
        [
            *("A paragraph.", ""),
            *("Rows       12", "Left file  a.csv", ""),
            *("group   rows  share", "a<b    1,200   60 %", "c|d        -   40 %", ""),
            *("        coef", "-" * WIDTH, "x        1.5", ""),
            *("First note.", "Second note.", ""),
            *("- one", "", "1. do", "2. check", "", "Within", "", "a bar", "", "x = 1"),
        ]
    )


def test_paired_facts_share_a_line() -> None:
    facts = Facts([("a", "1"), ("b", "2"), ("c", "3")], "Facts", paired=True)
    shown = write_text(Document("T", [Section("", [facts])])).split("\n")[2:]
    assert [line.split() for line in shown] == [["a:", "1", "c:", "3"], ["b:", "2"]]


def test_lines_have_nothing_between_them() -> None:
    document = Document("T", [Section("", [SET, Notes(["A long sentence. " * 20]), "End."])])
    assert len(write_lines(document).split("\n")) == 6


def test_markdown() -> None:
    blocks = write_markdown(WHOLE).split("\n\n")
    assert blocks[:5] == ["**Careful.**", "# Title", "`y ~ x`", "Start.", "## Second"]
    assert "- Rows: 12\n- Left file: a.csv" in blocks
    assert "| group | rows | share |\n|---|---|---|\n| a&lt;b | 1,200 | 60 % |\n| c\\|d | - | 40 % |" in blocks
    assert "| | coef |\n|---|---:|\n| x | 1.5 |" in blocks
    assert ["First note.", "Second note.", "- one", "1. do\n2. check", "### Within"] == blocks[-6:-1]
    assert blocks[-1] == "```\nx = 1\n```\n"


def test_page_has_every_part() -> None:
    shown = write_page(WHOLE)
    reader = Reader(shown)
    assert {"h1", "h2", "h3", "table", "ol", "ul", "svg", "figcaption", "pre", "details", "a"} <= reader.tags
    assert {"a<b", "c|d", "1,200", "Left file"} <= set(reader.cells)
    for text in ("Careful.", "Start.", "A paragraph.", "First note.", "Second note.", "hidden", "Save as a.csv"):
        assert text in shown


def test_fragment_names_its_subject() -> None:
    shown = write_fragment(Document("<T>", [Section("Left out", ["Kept."])], subject="<y>"))
    assert "<strong>&lt;T&gt;</strong><br><code>&lt;y&gt;</code>" in shown
    assert "<p>Kept.</p>" in shown
    assert "Left out" not in shown


def test_no_writer_lets_control_characters_through() -> None:
    odd = "a\x1b[31mb\u202e"
    parts: list[Part] = [
        odd,
        Notes([odd]),
        Facts([("k", odd)], "F"),
        Table(["n", "v"], [[odd, odd]], "T"),
        Steps([odd]),
    ]
    document = Document("T", [Section("S", parts)], subject=odd)
    for write in (write_text, write_lines, write_markdown, write_page, write_fragment):
        assert not set(write(document)) & {"\x1b", "\u202e"}, write.__name__


def test_latex_table() -> None:
    table = Table(["", "Std. error", "95 % interval"], [["a_b", "1,200", "[-∞, 2×10⁻³]"]], "T")
    lines = write_table(table, "C").split("\n")
    assert " & Std.\\ error & 95\\,\\% interval \\\\" in lines
    assert "a\\_b & $1{,}200$ & [$-\\infty$, $2 \\times 10^{-3}$] \\\\" in lines
