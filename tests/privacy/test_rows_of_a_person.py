"""Several rows of a person: all of them change together, and the release is no further from its neighbour than it says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dplinked as dpl
from dplinked import fitting, methods
from dplinked.errors import StudyError
from dplinked.privacy.calibration import privacy_mu
from dplinked.privacy.spending import Spending
from dplinked.study.origins import check_origins
from replay import Leak, replay

N, EPSILON, DELTA = 3000, 8.0, 1e-5
BOUNDS = {"x": (-1.0, 1.0), "w": (0.0, 2.0), "y": (-1.0, 1.0)}
UNIT = dpl.PrivacyUnit(rows=3, id="person", response_id="owner")


def make_rows(rng: np.random.Generator, per_person: int) -> dict[str, Any]:
    """Rows at the ends of their bounds, so that a person who turns round changes as much as can be."""
    x = rng.choice([-1.0, 1.0], N)
    return {
        "x": x,
        "w": rng.choice([0.1, 2.0], N),
        "y": np.clip(0.5 * x + rng.normal(0, 0.2, N), -1, 1),
        "b": np.arange(N) // 10,
        "person": np.arange(N) // per_person,
        "owner": rng.permutation(np.arange(N) // per_person),
    }


def turned(data: dict[str, Any], linkage: Any) -> dict[str, Any]:
    """The same rows, of which those of one person turn round, and with them the rows that hold the person's responses."""
    other = {name: column.copy() for name, column in data.items()}
    mine = data["person"] == 7
    held = mine if isinstance(linkage, dpl.Exact) else data["owner"] == 7
    other["x"][mine], other["w"][mine] = -1.0, 2.0
    other["y"][held] = 1.0
    data["x"][mine], data["y"][held] = 1.0, -1.0
    return other


def matching() -> dpl.Matching:
    matrix = sp.csr_array(
        0.9 * np.eye(1) if N == 1 else sp.diags_array([0.9, 0.1, 0.1], offsets=[0, 1, 1 - N], shape=(N, N))
    )
    return dpl.Matching(matrix, accuracy_min=0.85)


LINKAGES: dict[str, tuple[Any, dpl.PrivacyUnit]] = {
    "exact": (dpl.Exact(), dpl.PrivacyUnit(rows=3, id="person")),
    "ele": (dpl.ELE(0.8, block="b"), UNIT),
    "matching": (matching(), dataclasses.replace(UNIT, displaced_links=0, linkage_change=0.0)),
}
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "weights": {"weights": "w"},
    "descent": {"method": "ngd"},
    "events": {"family": "logistic", "levels": {"e": ["no", "yes"]}},
}


def run(data: dict[str, Any], linkage: Any, unit: Any, way: str) -> Any:
    options, formula, bounds = dict(WAYS[way]), "y ~ x", dict(BOUNDS)
    if way == "events":
        data, formula = {**data, "e": np.where(data["y"] > 0.0, "yes", "no")}, "e ~ x"
        bounds.pop("y")
    return dpl.fit(data, formula, bounds=bounds, linkage=linkage, unit=unit, epsilon=EPSILON, delta=DELTA, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LINKAGES)
def test_all_rows_of_a_person_replay(monkeypatch: pytest.MonkeyPatch, kind: str, way: str) -> None:
    linkage, unit = LINKAGES[kind]
    data = make_rows(np.random.default_rng(len(kind) + len(way)), 3)
    other = turned(data, linkage)
    reached = replay(
        monkeypatch,
        lambda: run(data, linkage, unit, way),
        lambda: run(other, linkage, unit, way),
        privacy_mu(EPSILON, DELTA),
    )
    assert reached > 0.1


@pytest.mark.parametrize("kind", ["exact", "ele"])
def test_catches_noise_for_a_single_row(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    linkage, unit = LINKAGES[kind]
    data = make_rows(np.random.default_rng(1), 3)
    other = turned(data, linkage)
    alone = lambda study: Spending(methods.method_of(study).mu(study))  # noqa: E731
    monkeypatch.setattr(fitting, "spending_of", alone)
    with pytest.raises(Leak):
        replay(
            monkeypatch,
            lambda: run(data, linkage, unit, "default"),
            lambda: run(other, linkage, unit, "default"),
            privacy_mu(EPSILON, DELTA),
        )


def test_ids_come_from_the_files_of_what_they_tell() -> None:
    """As far as columns say which of the linked files they come from."""
    declared = {
        "formula": "y ~ x",
        "bounds": BOUNDS,
        "linkage": dpl.ELE(0.8, block="b"),
        "epsilon": 1.0,
        "delta": DELTA,
    }
    study = dpl.Study(**declared, unit=UNIT)
    design, origins = study.prepare()[0], {"x": "left", "y": "right", "person": "left", "owner": "right"}
    check_origins(study, design, origins)
    for name, file in (("person", "right"), ("owner", "left")):
        with pytest.raises(StudyError, match="does not come from the file"):
            check_origins(study, design, {**origins, name: file})


def test_missing_ids_are_refused() -> None:
    data = make_rows(np.random.default_rng(1), 3)
    for name in ("person", "owner"):
        column = data[name].astype(float)
        column[5] = np.nan
        with pytest.raises(StudyError, match="ids are missing"):
            run({**data, name: column}, *LINKAGES["ele"], "default")


@pytest.mark.parametrize("column", ["person", "owner"])
def test_more_rows_than_declared_are_refused(column: str) -> None:
    data = make_rows(np.random.default_rng(1), 3)
    data[column] = np.arange(N) // 4
    with pytest.raises(StudyError, match="on more rows than"):
        run(data, *LINKAGES["ele"], "default")


def test_streams_are_read_as_often_as_ids_ask_for() -> None:
    import pyarrow as pa

    table = pa.table(make_rows(np.random.default_rng(3), 3))
    stream = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=500))
    linkage, unit = LINKAGES["exact"]
    release = dpl.fit(
        stream, "y ~ x", bounds=BOUNDS, linkage=linkage, unit=unit, epsilon=EPSILON, delta=DELTA, intervals=False, ranges="declared",
    )  # fmt: skip
    assert release.count == N


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 0, "id": "a"}, "from 1 to 1000"),
        ({"rows": 2}, "needs id"),
        ({"id": "a"}, "give rows"),
        ({"rows": 2, "id": 3}, "name of a column"),
        ({"rows": 2, "id": "a", "moves_block": True}, "held fixed"),
        ({"rows": 2, "id": "a", "displaced_links": 1}, "held fixed"),
        ({"rows": 2, "id": "a", "linkage_change": 0.5}, "held fixed"),
    ],
)
def test_units_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        dpl.PrivacyUnit(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unit": dpl.PrivacyUnit(rows=3, id="person")}, "response_id"),
        ({"unit": dpl.PrivacyUnit(rows=3, id="person", response_id="person")}, "different columns"),
        ({"linkage": dpl.Exact()}, "leave out response_id"),
        ({"calibration": "paper"}, "calibration='tight'"),
        ({"formula": "y ~ x + person", "bounds": {**BOUNDS, "person": (0, 9)}}, "belong to one person"),
        ({"linkage": dpl.ELE(0.8, block="person")}, "must be different columns"),
        ({"linkage": dpl.ELE(0.8, block="b", source="estimated", accuracy_min=0.7)}, "estimated"),
    ],
)
def test_studies_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    declared = {
        "formula": "y ~ x",
        "bounds": BOUNDS,
        "linkage": dpl.ELE(0.8, block="b"),
        "unit": UNIT,
        "epsilon": 1.0,
        "delta": DELTA,
    }
    with pytest.raises(StudyError, match=said):
        dpl.Study(**{**declared, **change}).prepare()


def test_a_person_of_one_row_is_as_before_in_requests() -> None:
    """A ledger knows requests again that were made before persons could have several rows."""
    assert dpl.PrivacyUnit(displaced_links=2).identity() == {
        "moves_block": False, "displaced_links": 2, "linkage_change": None,
    }  # fmt: skip
    assert UNIT.identity()["rows"] == 3


def test_a_ledger_refuses_fewer_rows_than_were_registered(tmp_path: Any) -> None:
    data = make_rows(np.random.default_rng(2), 3)
    ledger = dpl.Ledger.create(tmp_path / "l.db", "p", epsilon=20.0, delta=1e-4)
    linkage, unit = LINKAGES["ele"]
    ledger.register(data, linkage=linkage, unit=unit)
    options: dict[str, Any] = {
        "bounds": BOUNDS,
        "linkage": linkage,
        "epsilon": 1.0,
        "delta": DELTA,
        "ledger": tmp_path / "l.db",
        "population": "p",
    }
    with pytest.raises(StudyError, match="rows must be at least 3"):
        dpl.fit(data, "y ~ x", unit=dpl.PrivacyUnit(), **options)
    for ids in ({"id": "owner", "response_id": "person"}, {"id": "b", "response_id": "owner"}):
        with pytest.raises(StudyError, match=r"id must be 'person'|no columns but|must be different"):
            dpl.fit(data, "y ~ x", unit=dpl.PrivacyUnit(rows=3, **ids), **options)
    release = dpl.fit(data, "y ~ x", unit=unit, **options)
    assert "at most 3 rows in each" in release.to_html()
    assert release.privacy.mu == pytest.approx(privacy_mu(1.0, DELTA), rel=1e-6)
    assert "those with the same person" in release.privacy.statement


def test_a_promise_to_households_speaks_of_households() -> None:
    data = make_rows(np.random.default_rng(2), 3)
    data["household"] = data.pop("person")
    release = dpl.fit(
        data, "y ~ x", bounds=BOUNDS, linkage=dpl.Exact(), unit=dpl.PrivacyUnit(rows=3, id="household"),
        epsilon=EPSILON, delta=DELTA,
    )  # fmt: skip
    text = release.summary()
    assert "whatever the values of any one household had been" in " ".join(text.split())
    assert "any one person" not in text
    assert "for each household in the files, with all rows" in release.to_html()
    assert all(type(end) is float for end in release.predict({"x": 0.5})[0])


@pytest.mark.parametrize("kind", ["dict", "pandas", "polars"])
def test_rows_are_limited_whatever_they_hold(kind: str) -> None:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    make = {"dict": pa.table, "pandas": pd.DataFrame, "polars": pl.DataFrame}[kind]
    ids, values = [1, 1, 1, 2, None, 3, 3, 3, 3], np.arange(9.0)
    kept = dpl.limit_rows(make({"id": ids, "v": values}), id="id", rows=2, key="k")
    again = dpl.limit_rows(make({"id": ids, "v": values[::-1]}), id="id", rows=2, key="k")
    first, second = (
        sorted(frame["v"].to_pylist() if kind == "dict" else frame["v"].to_list()) for frame in (kept, again)
    )
    assert len(first) == 5
    assert sorted(8.0 - np.array(second)) == first  # the same places, whatever stands there
    with pytest.raises(StudyError, match="not in the table"):
        dpl.limit_rows(make({"id": ids}), id="di", rows=2, key="k")
