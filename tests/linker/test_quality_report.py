"""The quality report of a linkage: its figures are the estimates', and no name can break the page."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from dplinked.linker.describe_quality import slope_changes
from dplinked.linker.document import WARNING
from dplinked.linker.link import link
from dplinked.linker.linked import Linked
from dplinked.linker.rules import FURTHER, LAST, LATE, UNLINKED
from dplinked.report import charts
from dplinked.report.drawing import PALETTE
from dplinked.report.page import page, table
from dplinked.report.words import columns, shorten
from dplinked.simulate import two_files
from pages import Reader

FIELDS = ["given_name", "surname", "date_of_birth", "national_id"]
ODD_NAMES = [
    *("<script>alert(1)</script>", "\"double\" & 'single'", "</svg>", "--><b>", "]]>", "&amp;", 'x" onload="y'),
    *(
        "$x$",
        r"$\frac{1}{0}$",
        "_hidden",
        "😀 👩‍👩‍👧",
        "新南威尔士州",
        "ولاية",
        "\u202egnp.exe",
        "a\nb\x1b[31mc\0d",
        "  ",
        "W" * 70,
    ),
    *(
        "Division of Long Names, Department of Longer Ones, Unit A",
        "Division of Long Names, Department of Longer Ones, Unit B",
    ),
]


@pytest.fixture(scope="module")
def linked() -> Linked:
    files = two_files(300, 1)
    return link(files.left, files.right, block="state", fields=FIELDS, id="id")


@pytest.fixture(scope="module")
def audited(linked: Linked) -> Linked:
    return with_audit(linked)


def with_audit(linked: Linked) -> Linked:
    sample = linked.audit_sample(120).to_pydict()
    return linked.audited({**sample, "correct": ["no" if k % 9 == 0 else "yes" for k in range(len(sample["correct"]))]})


def with_blocks(linked: Linked, names: list[str]) -> Linked:
    """The same links under other blocks' names, a few of them last, a few without a score, one without a partner."""
    links = linked.links
    block = np.array([names[k % len(names)] for k in range(links.right.size)], dtype=object)
    right, score = links.right.copy(), links.score.copy()
    block[:12], score[:6] = LAST, np.nan
    block[0], right[0] = UNLINKED, -1
    return replace(linked, links=replace(links, right=right, score=score, block=block), audit=None)


def text_row(text: str, section: str, name: str) -> list[str]:
    """Words after a name in a section of the text."""
    lines = text.split(f"\n{section}\n")[1].splitlines()
    return next(line for line in lines if line.startswith(name + " ")).removeprefix(name).split()


def test_the_warning_comes_first(linked: Linked) -> None:
    assert WARNING.startswith("FOR THE STEWARD ONLY, NOT FOR PUBLICATION: everything below is read")
    assert linked.summary().splitlines()[0] == WARNING
    shown = linked.to_html()
    assert 0 < shown.index(WARNING) < shown.index("<h1>")


@pytest.mark.parametrize("which", ["linked", "audited"])
def test_figures_are_those_of_the_estimates(which: str, request: pytest.FixtureRequest) -> None:
    one: Linked = request.getfixturevalue(which)
    text, cells = one.summary(), Reader(one.to_html()).cells
    for k, name in [*enumerate(one.strata.names), (-1, "overall")]:
        wanted: list[str] = []
        for found in one.estimates:
            value, low, high = found.overall if name == "overall" else (found.accuracy[k], found.low[k], found.high[k])
            wanted.append(f"{value:.3f}")
            if np.isfinite(low):
                wanted.append(f"[{low:.3f}, {high:.3f}]")
            if found.checked is not None and found.correct is not None:
                wanted += [str(part.sum() if name == "overall" else part[k]) for part in (found.checked, found.correct)]
        assert text_row(text, "Accuracy per group", name) == " ".join(wanted).split()
        places = [i for i, cell in enumerate(cells) if cell == name]
        assert any(cells[i + 1 : i + 1 + len(wanted)] == wanted for i in places), name
    for found in one.estimates:
        assert found.assumes in " ".join(text.split())


def test_counts_are_those_of_the_links(linked: Linked) -> None:
    text = linked.summary()
    late = {name: int((linked.links.block == name).sum()) for name in LATE}
    below = int((linked.links.below & ~np.isin(linked.links.block, LATE)).sum())
    for words, rows in [
        ("Linked within blocks", 300 - sum(late.values()) - below),
        ("Linked below the threshold", below),
        ("Linked by further passes", late[FURTHER]),
        ("Linked last, at random", late[LAST]),
    ]:
        assert re.search(rf"\n{words} +{rows} \(", text), words
    assert below + late[FURTHER] > 0
    assert "keep their place with the public response" in text
    for name, rows in zip(linked.strata.names, linked.strata.rows, strict=True):
        assert text_row(text, "Links per group", name)[0] == str(rows)
    for field in linked.fields:
        assert text_row(text, "What was linked", field.name)[:2] == [field.kind, field.compare]


def test_next_steps_are_named(linked: Linked) -> None:
    for shown in (linked.summary(), linked.to_html()):
        for step in ("audit_sample", "--audit-sample", "release_accuracy", "public", "[unit]"):
            assert step in shown


@pytest.mark.parametrize(
    ("accuracy", "changes"),
    [
        (0.82, ("+2.5 %", "-2.4 %")),
        (0.99, ("+2.1 %", "-1.0 %")),
        (1.0, ("+2.0 %", "+0.0 %")),
        (0.02, ("anything", "-50.0 %")),
    ],
)
def test_slopes_under_a_wrong_accuracy(accuracy: float, changes: tuple[str, str]) -> None:
    assert slope_changes(accuracy) == changes


def test_page_stands_alone(audited: Linked) -> None:
    shown = audited.to_html()
    reader = Reader(shown)
    assert shown.startswith("<!DOCTYPE html>")
    assert ("lang", "en") in reader.attributes
    assert {"svg", "table", "title", "main"} <= reader.tags
    assert not reader.tags & {"script", "link", "img", "image", "iframe", "object", "foreignobject"}
    assert set(re.findall(r"\w+://[^\s\"'<>]+", shown)) == {"http://www.w3.org/2000/svg"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert len(reader.ids) == len(set(reader.ids)) > 0
    pointed = re.findall(r'(?:href="|url\()#([^")]+)', shown)
    assert set(pointed) == set(reader.ids)


def test_same_links_same_bytes(audited: Linked) -> None:
    assert audited.to_html() == audited.to_html()
    assert audited.summary() == audited.summary()


def test_charts_take_the_pages_colours(audited: Linked) -> None:
    drawings = re.findall(r"<svg.*?</svg>", audited.to_html(), re.DOTALL)
    assert len(drawings) == 7, "three of groups, and a waterfall for each of four links"
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)  # well-formed on its own
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"] == root[0].text
        assert "currentColor" in drawing
        assert set(re.findall(r"#[0-9a-f]{6}\b", drawing)) <= set(PALETTE)
        assert "<style" not in drawing
        assert "font-family: " not in drawing


def test_odd_names_are_only_text(linked: Linked) -> None:
    one = with_audit(with_blocks(linked, ODD_NAMES))
    reader = Reader(one.to_html())
    assert not reader.tags & {"script", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    for name in ODD_NAMES[:10]:
        assert reader.cells.count(name) >= 2, name
    assert {"a�b�[31mc�d", "(blank)"} <= set(reader.cells)
    text = one.summary()
    assert not set(text) & {"\x1b", "\0", "\u202e", "\r"}
    assert {len(row) for row in (text_row(text, "Links per group", name) for name in ("$x$", "_hidden"))} == {4}


@pytest.mark.parametrize("name", ["$x$", r"$\nonsense{$", "_hidden", "</svg>", "😀 👩‍👩‍👧", "新南", 'a="b"', "#010203"])
def test_odd_names_are_text_in_charts(name: str) -> None:
    half = np.array([0.5])
    for drawing in (
        charts.links_per_block([name], [1]),
        charts.accuracy_chart([name], [charts.Series("audit", half, half, half)]),
        charts.accuracy_chart(["a"], [charts.Series(name, half, half, half)]),
        charts.interval_chart(["a"], [charts.Series("b", half, half, half)], title="", axis=name),
        charts.score_histogram(half, half > 1, axis=name),
    ):
        assert name in [node.text for node in ElementTree.fromstring(drawing).iter() if node.tag.endswith("}text")]


@pytest.mark.parametrize("groups", [1, 2, 48, 200])
def test_any_number_of_groups(linked: Linked, groups: int) -> None:
    one = with_blocks(linked, [f"region {k}" for k in range(groups)])
    Reader(one.to_html())
    assert ("(linked)" in one.summary()) == (groups > 50)


def test_one_row() -> None:
    files = two_files(1, 1)
    one = link(files.left, files.right, fields=FIELDS, id="id")
    Reader(one.to_html())
    assert "1 row, every one kept" in one.summary()


def test_links_that_nothing_is_known_about() -> None:
    files = two_files(40, 1)
    pairs = {"left": files.left["id"].to_pylist()[:30], "right": files.right["id"].to_pylist()[:30]}
    one = link(files.left, files.right, method="pairs", pairs=pairs, id="id")
    assert one.estimates == ()
    for shown in (one.summary(), one.to_html()):
        assert "Nothing tells how good these links are" in shown
        assert "The links have no scores." in shown
    Reader(one.to_html())


def test_scores_may_all_be_missing(linked: Linked) -> None:
    one = replace(linked, links=replace(linked.links, score=np.full(300, np.nan)))
    Reader(one.to_html())
    assert "The links have no scores." in one.summary()


def test_without_matplotlib(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    linked.summary()
    reader = Reader(shown := linked.to_html())
    assert "svg" not in reader.tags
    assert "pip install matplotlib" in shown


# --- pages and charts on their own -------------------------------------------------------------------


def test_page_and_table_escape() -> None:
    shown = page("<i>&", table(["<a>", "n"], [["<b>", "1,000"], ["'\"", "-"]], label='"<x>'), warning="<u>")
    reader = Reader(shown)
    assert not reader.tags & {"i", "a", "b", "u", "x"}
    assert reader.cells == ["<a>", "n", "<b>", "1,000", "'\"", "-"]
    assert ("aria-label", '"<x>') in reader.attributes
    assert reader.attributes.count(("class", "number")) == 3
    assert [value for name, value in reader.attributes if name == "scope"] == ["col", "col", "row", "row"]


def test_bins_count_every_score_once() -> None:
    rng = np.random.default_rng(1)
    for scores in (
        np.array([2.0, 2.5, 4.0, 4.0]), np.array([3.0]), np.float32(0.3) * rng.integers(0, 9, 50), rng.normal(0, 20, 500),
        np.array([0.0, 1e-7, 5.0]), np.array([-60.0, 60.0]), np.linspace(0, 1, 25), 1e6 + rng.random(9),
    ):  # fmt: skip
        bins = charts.make_bins(scores)
        assert np.histogram(scores, bins.edges)[0].sum() == scores.size
        assert 1 <= len(bins.labels) == bins.edges.size - 1 <= 24
    assert charts.make_bins(np.array([2.0, 3.0, 2.5])).labels == ("2", "2.5", "3")
    assert len(charts.make_bins(np.array([np.nan])).labels) == 1


def test_charts_of_nothing() -> None:
    none, nan = np.zeros(0), np.full(2, np.nan)
    for drawing in (
        charts.score_histogram(none, none.astype(bool)),
        charts.accuracy_chart([], []),
        charts.accuracy_chart(["a", "b"], [charts.Series("x", nan, nan, nan)]),
        charts.links_per_block([], []),
        charts.interval_chart(
            ["a"], [charts.Series("_x", nan[:1] * 0 + 2, nan[:1], nan[:1])], title="$t$", axis="$a$", zero=True
        ),
    ):
        ElementTree.fromstring(drawing)


def test_an_estimate_may_lie_outside_its_interval() -> None:
    """Estimates of small groups are drawn towards the others, intervals are not."""
    ends = np.array([0.2]), np.array([0.6])
    drawing = charts.accuracy_chart(["a"], [charts.Series("audit", np.array([0.9]), *ends)])
    ElementTree.fromstring(drawing)


def test_ids_differ_between_charts() -> None:
    first, second = (Reader(charts.links_per_block(["a", "b"], rows)).ids for rows in ([1, 2], [2, 1]))
    assert first
    assert not set(first) & set(second)


def test_long_names_keep_both_ends() -> None:
    short = shorten("Department of Something, Unit A", 20)
    assert columns(short) <= 20
    assert short.startswith("Department")
    assert short.endswith("Unit A")
    assert shorten("新南威尔士州", 6) == "新…州"
