"""Parquet files and streams give the sums that a table in memory gives, however the files are cut."""

from __future__ import annotations

import datetime
import math
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dplinked as dpl
from dplinked.data import parquet
from dplinked.data import table as rows
from dplinked.data.encoding import Dictionary
from dplinked.data.files import find_files
from dplinked.study.build import build_design
from dplinked.study.design import UNDECLARED
from dplinked.sums import files as file_engine
from dplinked.sums.engine import open_source, source_bytes
from dplinked.sums.numpy import kernel, prepare, reduce, stream
from dplinked.sums.numpy.tables import Tables
from engine_sums import every_sum

N = 403
BOUNDS = {"x": (-1.0, 1.0), "w": (0.5, 2.0), "y": (-3.0, 3.0)}
LEVELS = {"g": ["a", "b", "c"]}


def make_table(seed: int = 0, keys: Any = None) -> pa.Table:
    rng = np.random.default_rng(seed)
    cells = rng.uniform(-1.2, 1.2, N)
    cells[3], cells[50], cells[90] = np.nan, np.inf, 1e300
    responses = rng.normal(size=N)
    responses[[3, 11, 40]] = np.nan, np.nan, -np.inf
    return pa.table(
        {
            "x": pa.array(cells, mask=np.arange(N) == 7),
            "w": pa.array(rng.uniform(0.5, 2.0, N).astype(np.float32)),
            "y": responses,
            "g": pa.array(rng.choice(["a", "b", "c", "zzz", None], N), pa.string()),
            "k": pa.array(rng.integers(100, 120, N) if keys is None else keys),
        }
    )


KEYS: dict[str, Any] = {
    "whole numbers": None,
    "far apart": (np.arange(N) // 5) * 10**12,
    "negative": -(np.arange(N, dtype=np.int64) // 5),
    "unsigned": pa.array(np.uint64(2**64 - 1) - np.arange(N, dtype=np.uint64) // 9),
    "texts": pa.array([None if i % 40 == 0 else f"é{i // 7}" for i in range(N)]),
    "large texts": pa.array([f"b{i // 7}" for i in range(N)], pa.large_string()),
    "dictionary": pa.array([None if i % 50 == 0 else f"b{i % 9}" for i in range(N)]).dictionary_encode(),
    "floats": np.where(np.arange(N) % 50 == 0, np.nan, np.where(np.arange(N) % 3 == 0, -0.0, np.arange(N) // 20 * 0.5)),
    "booleans": np.arange(N) % 2 == 0,
    "dates": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(i // 11) for i in range(N)]),
    "decimals": pa.array([Decimal(i // 11) / 2 for i in range(N)], pa.decimal128(10, 2)),
    "nulls": pa.array([None] * N, pa.int64()),
}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts, pieces and strips of few rows; nothing is read whole because it is small."""
    monkeypatch.setattr(rows, "PART", 64)
    monkeypatch.setattr(parquet, "PART", 64)
    monkeypatch.setattr(stream, "PART", 64)
    monkeypatch.setattr(prepare, "STRIP", 16)
    monkeypatch.setattr(file_engine, "IN_MEMORY", 0)


def one_file(table: pa.Table, folder: Path) -> Any:
    pq.write_table(table, folder / "a.parquet", row_group_size=37)
    return folder / "a.parquet"


def large_groups(table: pa.Table, folder: Path) -> Any:
    pq.write_table(table, folder / "a.parquet")
    return str(folder / "a.parquet")


def several_files(table: pa.Table, folder: Path) -> Any:
    for k in range(0, N, 90):
        pq.write_table(table.slice(k, 90), folder / f"part-{k:03}.parquet", row_group_size=11)
    return folder / "part-*.parquet"


def whole_folder(table: pa.Table, folder: Path) -> Any:
    several_files(table, folder)
    (folder / "_SUCCESS").touch()
    (folder / "_metadata.parquet").write_bytes(b"")
    return folder


def spilled(table: pa.Table, _: Path) -> Any:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=29))


LAYOUTS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "one file": one_file,
    "large row groups": large_groups,
    "several files": several_files,
    "folder": whole_folder,
    "stream": spilled,
}


def all_sums(
    source: Any, formula: str, linkage: Any, unit: Any = None, typical: Any = None, **counted: Any
) -> dict[str, np.ndarray]:
    """What every verb of an engine returns."""
    names = {"g": LEVELS["g"]} if "g" in formula + str(counted) else {}
    design = build_design(formula, BOUNDS, names, typical, **counted)
    found = open_source(source).open(design, linkage, unit or dpl.PrivacyUnit())
    result = every_sum(found)
    if not isinstance(linkage, dpl.Matching):
        result["counts"] = found.column_counts(16).counts
    if found.blocks is not None:
        assert found.blocks.by_key is not None
    return result


def assert_equal_sums(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=1e-10, atol=1e-10 * np.abs(values).max(), err_msg=name)


LAID_OUT = [
    pytest.param(
        layout, kind, marks=() if (i + j) % 5 in (0, 2) else pytest.mark.slow
    )  # two layouts by default, in turn
    for i, kind in enumerate(KEYS)
    for j, layout in enumerate(LAYOUTS)
]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("layout", "kind"), LAID_OUT)
def test_files_give_the_sums_of_memory(layout: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(1, KEYS[kind])
    linkage = dpl.ELE(0.8, block="k", other=0.9)
    expected = all_sums(table.to_pandas() if kind == "texts" else table, "y ~ x + log(w) + C(g)", linkage)
    if layout == "large row groups":
        monkeypatch.setattr(parquet, "BATCH", 30)
    assert_equal_sums(expected, all_sums(LAYOUTS[layout](table, tmp_path), "y ~ x + log(w) + C(g)", linkage))


def whole_numbers(place: int = 0, cell: Any = 0) -> Any:
    """Whole numbers that lie close together, but for one cell."""
    listed = (np.arange(N) // 5).tolist()
    return pa.array([*listed[:place], cell, *listed[place + 1 :]], pa.uint64())


NUMBERS: dict[str, Any] = {
    "dense": whole_numbers(),
    "scattered": pa.array(np.random.default_rng(0).integers(0, 2500, N)),
    "falling": pa.array(-np.arange(N) // 2, pa.int16()),
    **{f"null at {place}": whole_numbers(place, None) for place in (0, 200, N - 1)},
    **{f"far at {place}": whole_numbers(place, 10**12) for place in (0, 200, N - 1)},
    "beyond 63 bits": whole_numbers(200, 2**63 + 5),
    "each part dense": pa.array(np.arange(N) // 64 % 3 * 10**9 + np.arange(N) % 40),
    "parts of nulls": pa.array([i // 3 if i // 64 % 2 else None for i in range(N)]),
}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_blocks_are_counted_in_one_pass_whatever_the_keys(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar that ran twice would tell of a key."""
    monkeypatch.setattr(parquet, "_WORKERS", workers)
    calls, linkage = [], dpl.ELE(0.8, block="k", other=0.9)
    for keys in NUMBERS.values():
        table, seen = make_table(1, keys), list[Any]()
        path = one_file(table, tmp_path)
        found = parquet.ParquetRows([path], progress=lambda *call, seen=seen: seen.append(call)).find_keys("k")
        expected = open_source(table).count_keys("k")
        assert dict(zip(found.distinct().to_pylist(), found.counts[found.counts > 0], strict=True)) == expected
        assert_equal_sums(all_sums(table, "y ~ x", linkage), all_sums(path, "y ~ x", linkage))
        calls.append(seen)
    assert len(calls[0]) > 1
    assert all(seen == calls[0] for seen in calls)


def shared(indices: Any, dictionary: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), dictionary)


ODD: dict[str, Any] = {
    "null in a dictionary": shared([0, 1, None, 2], pa.array(["a", None, ""])),
    "dictionary of moments": shared([0, 1, None, 0], pa.array([2**62, 5], pa.timestamp("s"))),
    "seconds that overflow": pa.array([2**62, 0, None, 1], pa.timestamp("s")),
    "moments in no time zone": pa.array([0, 1, None, 2], pa.timestamp("us", tz="No/Where")),
    "views": pa.array(["a", None, "", "a"], pa.string_view()),
    "bytes": pa.array([b"a", b"\xff", None, b"a"]),
    "bytes in views": pa.array([b"a", b"\xff", None, b"a"], pa.binary_view()),
    "large texts": pa.array(["a", None, "b", "a"], pa.large_string()),
    "half floats": pa.array([1.0, None, 2.5, 1.0], pa.float16()),
    "long decimals": pa.array([Decimal(1), None, Decimal("2.5"), Decimal(1)], pa.decimal256(50, 2)),
    "durations": pa.array([1, None, 2, 1], pa.duration("s")),
    "times": pa.array([1, None, 2, 1], pa.time64("ns")),
    "days": pa.array([2**31 - 1, 0, None, 1], pa.date32()),
    "nulls": pa.nulls(4),
    "lists": pa.array([[1], None, [2], [1]]),
    "structs": pa.array([{"a": 1}, None, {}, {"a": 1}]),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 4], [1, 2]),
    "unions": pa.UnionArray.from_sparse(pa.array([0, 1, 0, 1], pa.int8()), [pa.array(range(4)), pa.array(["a"] * 4)]),
    "short decimals": pa.array([Decimal(1)] * 4, pa.decimal32(5, 2)),
}


def refusal(source: Any, **kind: Any) -> str | None:
    try:
        source.require(["k"], **kind)
    except dpl.StudyError as fault:
        return str(fault)
    return None


@pytest.mark.parametrize("kind", ODD)
def test_a_stream_of_any_column_is_what_the_table_is(kind: str) -> None:
    """Cells that Parquet cannot store do not stop it; types that are no keys or no numbers are refused by the schema."""
    table = pa.table({"k": ODD[kind], "x": np.arange(4.0)})
    known = open_source(table)
    found = open_source(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3)))
    assert found.count == 4
    assert refusal(found) == refusal(known)
    assert refusal(found, numeric=["k"]) == refusal(known, numeric=["k"])
    if refusal(known) is None:
        assert found.count_keys("k") == known.count_keys("k")
    if refusal(known, numeric=["k"]) is None:
        assert found.summarise_column("k", 1.5, 2.0) == known.summarise_column("k", 1.5, 2.0)


def test_nulls_of_views_are_no_texts() -> None:
    assert open_source(pa.table({"k": ODD["views"]})).count_keys("k") == {"a": 2, None: 1, "": 1}


def test_dictionaries_of_chunks_are_made_one(tmp_path: Path) -> None:
    """127 levels fit into eight bits; those of two chunks together do not."""
    chunks = [shared(range(100), pa.array([f"{letter}{i}" for i in range(100)])) for letter in "ab"]
    table = pa.table({"k": pa.chunked_array(chunks)})
    for i, chunk in enumerate(chunks):
        pq.write_table(pa.table({"k": chunk}), tmp_path / f"{i}.parquet")
    expected = {f"{letter}{i}": 1 for letter in "ab" for i in range(100)}
    files = parquet.ParquetRows([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert open_source(table).count_keys("k") == expected
    assert Tables(files).count_keys("k") == expected
    assert list(source_bytes(table)) == list(source_bytes(table.slice(0)))


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()])
def test_chunks_of_texts_are_combined_with_room_for_more_than_two_gigabytes(kind: Any) -> None:
    chunks = [pa.array(["a", "b"]).cast(kind), pa.array(["b", None]).cast(kind)]
    found = rows.Rows(pa.table({"k": pa.chunked_array(chunks)}))
    assert found.keys("k").type == pa.large_string()
    assert found.keys("k").to_pylist() == ["a", "b", "b", None]


@pytest.mark.parametrize("missing", [np.nan, "NA"])
def test_half_a_surrogate_pair_is_no_key_in_any_column_of_pandas(missing: Any) -> None:
    pd = pytest.importorskip("pandas")
    dtype = pd.StringDtype("python", na_value=pd.NA if missing == "NA" else missing)
    frame = pd.DataFrame({"k": pd.array(["a", "\ud800", None, "a"], dtype=dtype)})
    assert open_source(frame).count_keys("k") == {"a": 2, None: 2}
    assert open_source(frame).summarise_column("k", 0.0, 1.0).missing == 4


TEXTS: dict[str | None, float | None] = {
    "0.1": 0.1, " +2.5e-1\t": 0.25, "-.5": -0.5, "1.": 1.0, "1e400": math.inf, "true": 1.0, "True": 1.0, "FALSE": 0.0, "0.30000000000000004": 0.1 + 0.2,
    "word": None, "": None, " ": None, "nan": None, "inf": None, "1_000": None, "１２": None, "0x10": None, "1,5": None, "--1": None,
    "tRue": None, "1e": None, "5 5": None, "🎲": None, "9" * 5000: math.inf, None: None,
}  # fmt: skip


def text_tables(texts: list[str | None]) -> dict[str, Any]:
    """The same texts in every container that has a type for texts, and in those that have none."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pa.table({"x": pa.array(texts, pa.string())})
    return {
        "list": {"x": texts},
        "array of texts": {"x": np.array([text or "" for text in texts])},
        "array of bytes": {"x": np.array([(text or "").encode() for text in texts])},
        "array of objects": {"x": np.array(texts, dtype=object)},
        "pandas": pd.DataFrame({"x": texts}),
        "pandas objects": pd.DataFrame({"x": pd.Series(texts, dtype=object)}),
        "pandas nullable": pd.DataFrame({"x": pd.array(texts, dtype="string")}),
        "pandas python": pd.DataFrame({"x": pd.array(texts, dtype="string[python]")}),
        "pandas arrow": pd.DataFrame({"x": pd.array(texts, dtype=pd.ArrowDtype(pa.string()))}),
        "pandas category": pd.DataFrame({"x": pd.Categorical(texts)}),
        "polars": pl.DataFrame({"x": texts}),
        "polars lazy": pl.DataFrame({"x": texts}).lazy(),
        "polars category": pl.DataFrame({"x": pl.Series(texts, dtype=pl.Categorical)}),
        **{
            str(kind): table.cast(pa.schema([("x", kind)]))
            for kind in (pa.string(), pa.large_string(), pa.string_view())
        },
        "dictionary": pa.table({"x": table["x"].combine_chunks().dictionary_encode()}),
        "stream": pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=5)),
    }


@pytest.mark.parametrize("container", text_tables([None]))
def test_texts_are_numbers_cell_by_cell_in_every_container(container: str) -> None:
    source = open_source(text_tables(list(TEXTS))[container])
    source.require(["x"], numeric=["x"])
    (found,) = source.rows.read(0, ["x"])
    expected = np.array([np.nan if value is None else value for value in TEXTS.values()])
    np.testing.assert_array_equal(found.numbers("x", 0, len(TEXTS)), expected)


@pytest.mark.parametrize("kind", ["int64", "double", "dictionary"])
def test_one_word_changes_no_other_number(kind: str) -> None:
    """What a reader of CSV files does with a word: the whole column becomes text."""
    numbers = {"int64": [1, 2, 3], "double": [0.1, 0.2, 1e-7], "dictionary": pa.array([5, 6, 5]).dictionary_encode()}[
        kind
    ]
    table = pa.table({"x": numbers})
    texts = [str(cell) for cell in table["x"].to_pylist()]
    known, other = (open_source(data).rows.numbers("x", 0, 3) for data in (table, {"x": ["word", *texts[1:]]}))
    assert known[1:].tolist() == other[1:].tolist()
    assert np.isnan(other[0])


def odd_frames() -> dict[str, Any]:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    return {
        "128 bits": pl.DataFrame({"k": pl.Series([1, 2], dtype=pl.Int128)}),
        "complex": pd.DataFrame({"k": np.array([1j, 2j])}),
        "sparse": pd.DataFrame({"k": pd.arrays.SparseArray([0.0, 1.0])}),
        "periods": pd.DataFrame({"k": pd.period_range("2020", periods=2, freq="D")}),
        "runs": pa.table({"k": ODD["runs"]}),
    }


@pytest.mark.parametrize("kind", ["128 bits", "sparse", "periods", "runs"])
def test_types_that_cannot_be_read_are_refused_by_the_schema(kind: str) -> None:
    found = open_source(odd_frames()[kind])
    with pytest.raises(dpl.StudyError, match=r"'k' holds .*, which cannot be compared"):
        found.require(["k"])
    with pytest.raises(dpl.StudyError, match=r"'k' holds .*, not numbers"):
        found.require(["k"], numeric=["k"])


def test_complex_columns_are_read_cell_by_cell() -> None:
    """A single complex cell makes a column of real numbers complex."""
    found = open_source(odd_frames()["complex"])
    found.require(["k"], numeric=["k"])
    assert found.summarise_column("k", 0.0, 1.0).missing == 2
    assert found.count_keys("k") == {None: 2}


def test_objects_of_polars_and_long_floats_are_read_cell_by_cell() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"k": pl.Series([1, "a", object()], dtype=pl.Object)})
    assert open_source(frame).count_keys("k") == {"1": 1, "a": 1, None: 1}
    found = open_source({"x": np.array([1.5, np.nan], np.longdouble)}).summarise_column("x", 0.0, 1.0)
    assert (found.missing, found.above) == (1, 1)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", ["whole numbers", "far apart", "texts", "floats"])
@pytest.mark.parametrize("formula", ["y ~ x*w", "y ~ 0 + x + C(g)"])
@pytest.mark.parametrize("typical", [None, {"x": (-0.4, 0.2)}])
def test_accuracy_tables_and_other_blocks(kind: str, formula: str, typical: Any, tmp_path: Path) -> None:
    table = make_table(2, KEYS[kind])
    from dplinked.data.keys import key_text

    distinct = [key_text(value) for value in pa.array(table.column("k").to_pylist()).unique().to_pylist()]
    accuracy = {key: 0.6 + 0.3 / (1 + i) for i, key in enumerate(distinct[::2]) if key is not None}
    linkage = dpl.ELE(accuracy, block="k", other=0.7)
    unit = dpl.PrivacyUnit(moves_block=True)
    expected = all_sums(table, formula, linkage, unit, typical)
    found = all_sums(one_file(table, tmp_path), formula, linkage, unit, typical)
    assert_equal_sums(expected, found)
    source = open_source(tmp_path / "a.parquet")
    design = build_design("y ~ x", BOUNDS)
    facts, same = (s.open(design, linkage, unit).blocks for s in (source, open_source(table)))
    assert facts == same


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("linkage", [dpl.Exact(), dpl.ELE(0.8)], ids=["exact", "one block"])
def test_without_blocks(linkage: Any, tmp_path: Path) -> None:
    table = make_table(3)
    assert_equal_sums(
        all_sums(table, "y ~ x + I(w**2)", linkage),
        all_sums(several_files(table, tmp_path), "y ~ x + I(w**2)", linkage),
    )


@pytest.mark.usefixtures("small_parts")
def test_a_matching_matrix_over_files(tmp_path: Path) -> None:
    """By positions in the order of the files, and by ids, in any order of the pairs."""
    rng = np.random.default_rng(4)
    Q = sp.eye_array(N).tocsr() * 0.7 + sp.csr_array(np.eye(N)[rng.permutation(N)]) * 0.3
    table = make_table(4).append_column("id", pa.array([f"p{i}" for i in rng.permutation(N)]))
    unit = dpl.PrivacyUnit(linkage_change=2.0, displaced_links=1)
    expected = all_sums(table, "y ~ x + w", dpl.Matching(Q), unit)
    dense = build_design("y ~ x + w", BOUNDS)
    x, _ = prepare.prepare_rows(rows.Rows(table), dense, dpl.Exact(), dpl.PrivacyUnit()).whole()
    h = np.vstack([np.ones(N), x])
    np.testing.assert_allclose(expected["H"], h @ (Q @ h.T), rtol=1e-10)
    path = one_file(table, tmp_path)
    assert_equal_sums(expected, all_sums(path, "y ~ x + w", dpl.Matching(Q), unit))
    entries, ids = sp.coo_array(Q), np.array(table.column("id").to_pylist())
    order = rng.permutation(entries.nnz)
    pairs = pa.table(
        {"row": ids[entries.row][order], "match": ids[entries.col][order], "probability": entries.data[order]}
    )
    assert_equal_sums(expected, all_sums(path, "y ~ x + w", dpl.Matching(pairs, id="id"), unit))
    pq.write_table(pairs, tmp_path / "pairs.pq")
    assert_equal_sums(expected, all_sums(table, "y ~ x + w", dpl.Matching(tmp_path / "pairs.pq", id="id"), unit))
    with pytest.raises(dpl.StudyError, match="not in 'id'"):
        all_sums(table.slice(1), "y ~ x + w", dpl.Matching(pairs, id="id"), unit)
    twice = table.set_column(table.schema.get_field_index("id"), "id", pa.array(["p0"] * N))
    with pytest.raises(dpl.StudyError, match="must be different"):
        all_sums(twice, "y ~ x + w", dpl.Matching(pairs, id="id"), unit)


@pytest.mark.usefixtures("small_parts")
def test_partitions_are_columns(tmp_path: Path) -> None:
    table = make_table(5, np.arange(N) % 6)
    for key in range(6):
        folder = tmp_path / f"k={key if key else '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir()
        part = table.filter(pa.compute.equal(table["k"], key)).drop_columns("k")
        pq.write_table(part, folder / "a.parquet")
    keys = [None if key == 0 else str(key) for key in table.column("k").to_pylist()]
    expected = all_sums(table.set_column(4, "k", pa.array(keys)), "y ~ x + w + C(g)", dpl.ELE(0.8, block="k"))
    assert_equal_sums(expected, all_sums(tmp_path, "y ~ x + w + C(g)", dpl.ELE(0.8, block="k")))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("batch", [1, 23, 1000])
@pytest.mark.parametrize("accuracy", [0.8, {"b1": 0.9, "b2": 0.7, "b3": 0.6}])
def test_contiguous_streams_are_summed_as_they_come(batch: int, accuracy: Any) -> None:
    table = make_table(6, pa.array([f"b{i // 90}" if i < 360 else None for i in range(N)]))
    table = pa.concat_tables([table.slice(90), table.slice(0, 90)])  # blocks without an accuracy come last
    linkage = dpl.ELE(accuracy, block="k", other=0.75)
    design = build_design("y ~ x + w + C(g)", BOUNDS, LEVELS)
    expected = open_source(table).open(design, linkage, dpl.PrivacyUnit()).instrument_sums()
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=batch))
    source = open_source(dpl.Stream(batches, contiguous=True, rows=N), once=True)
    found = source.open(design, linkage, dpl.PrivacyUnit()).instrument_sums()
    np.testing.assert_allclose(found.matrix, expected.matrix, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("verb", ["with_weights", "own_rows", "right_residuals", "row_meat", "column_counts"])
def test_streams_that_are_read_once_refuse_what_takes_another_pass(verb: str) -> None:
    table = make_table(6)
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    source = open_source(dpl.Stream(batches, contiguous=True, rows=N), once=True)
    found = source.open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), dpl.PrivacyUnit())
    with pytest.raises(dpl.StudyError, match="sums only"):
        getattr(found, verb)(None)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("keys", "count", "message"), [("mixed", N, "follow each other"), ("in order", N + 1, "declared")]
)
def test_streams_that_are_not_as_declared(keys: str, count: int, message: str) -> None:
    table = make_table(7, np.arange(N) // 9 if keys == "in order" else np.arange(N) // 3 % 60)
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=40))
    with pytest.raises(dpl.StudyError, match=message):
        dpl.fit(
            dpl.Stream(batches, contiguous=True, rows=count), "y ~ x", bounds=BOUNDS, linkage=dpl.ELE(0.8, block="k"),
            epsilon=1.0, delta=1e-5, intervals=False,
        )  # fmt: skip


@pytest.mark.parametrize("unit", [dpl.PrivacyUnit(moves_block=True), dpl.PrivacyUnit(linkage_change=1.0)])
def test_contiguous_streams_need_blocks_that_stay(unit: dpl.PrivacyUnit) -> None:
    """Whether blocks follow each other tells about them."""
    table = make_table(7, np.arange(N) // 9)
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=40))
    with pytest.raises(dpl.StudyError, match="stay as they are"):
        dpl.fit(
            dpl.Stream(batches, contiguous=True, rows=N), "y ~ x", bounds=BOUNDS, linkage=dpl.ELE(0.8, block="k"), unit=unit,
            epsilon=1.0, delta=1e-5, intervals=False,
        )  # fmt: skip


def test_a_stream_is_fitted_with_intervals_from_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    table = make_table(8)
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=40))
    release = dpl.fit(batches, "y ~ x", bounds=BOUNDS, linkage=dpl.ELE(0.8, block="k"), epsilon=1.0, delta=1e-5)
    assert release.count == N
    assert release.conf_int()
    assert not list(tmp_path.iterdir())


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    pq.write_table(make_table(), tmp_path / "a.parquet")
    pq.write_table(make_table().drop_columns("w"), tmp_path / "b.parquet")
    with pytest.raises(dpl.StudyError, match="same columns"):
        open_source(tmp_path)
    with pytest.raises(dpl.StudyError, match="no files"):
        find_files(tmp_path / "*.csv")
    (tmp_path / "c.csv").write_text("x\n1\n", encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="one kind"):
        find_files(tmp_path / "[ac].*")


@pytest.mark.usefixtures("small_parts")
def test_a_column_is_found_whatever_its_name(tmp_path: Path) -> None:
    names = {"x": 'a"b.c', "w": "`;--", "y": "<b>é</b>", "g": "sélect 🎲", "k": "k.k"}
    table = make_table(9)
    renamed = table.rename_columns([names[name] for name in table.column_names])
    pq.write_table(renamed, tmp_path / "a.parquet", row_group_size=50)
    bounds = {names[name]: value for name, value in BOUNDS.items()}
    fit = [
        open_source(data).open(build_design(formula, limits), dpl.ELE(0.8, block=key), dpl.PrivacyUnit())
        for data, formula, limits, key in [
            (table, "y ~ x", BOUNDS, "k"),
            (tmp_path / "a.parquet", '`<b>é</b>` ~ `a"b.c`', bounds, "k.k"),
        ]
    ]
    np.testing.assert_allclose(fit[0].instrument_sums().matrix, fit[1].instrument_sums().matrix, rtol=1e-12)


@pytest.mark.usefixtures("small_parts")
def test_progress_tells_parts(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    lock = threading.Lock()

    def progress(title: str, done: int, total: int) -> None:
        with lock:
            seen.append((title, done, total))

    study = dpl.Study(formula="y ~ x", bounds=BOUNDS, epsilon=8.0, delta=1e-5, linkage=dpl.ELE(0.8, block="k"))
    dpl.fit_study(study, one_file(make_table(), tmp_path), progress=progress)
    titles = list(dict.fromkeys(title for title, _, _ in seen))
    assert titles[:4] == ["Counting blocks", "Counting", "Summing", "Measuring residuals"]
    for title in titles:
        counted = [(done, total) for found, done, total in seen if found == title]
        assert max(counted) == (counted[0][1],) * 2


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_pass_stops_its_threads(tmp_path: Path) -> None:
    def interrupt(title: str, done: int, total: int) -> None:
        if title == "Summing":
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    study = dpl.Study(formula="y ~ x", bounds=BOUNDS, epsilon=1.0, delta=1e-5, linkage=dpl.ELE(0.8, block="k"))
    with pytest.raises(KeyboardInterrupt):
        dpl.fit_study(study, one_file(make_table(), tmp_path), progress=interrupt)
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("where", ["x > -0.3 and not g == 'b'", "-0.5 < x <= 0.5 or 2 * w - x >= 3"])
def test_what_rows_count_is_the_same_with_and_without_the_kernel(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, linkage = make_table(4, np.arange(N) // 6), dpl.ELE(0.8, block="k")
    found = all_sums(several_files(table, tmp_path), "y ~ x", linkage, weights="w", where=where)
    monkeypatch.setattr(kernel, "KERNEL", None)
    assert_equal_sums(all_sums(table, "y ~ x", linkage, weights="w", where=where), found)


@pytest.mark.parametrize("pattern", ["alternating", "pairs", "random"])
def test_large_blocks_get_one_addition_a_strip(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of large blocks one by one, added to a total that has grown, would lose more than the rounding bound allows."""
    monkeypatch.setattr(kernel, "KERNEL", None)
    monkeypatch.setattr(prepare, "TILE", 0)
    monkeypatch.setattr(prepare, "STRIP", 64)
    rng = np.random.default_rng(1)
    codes = {"alternating": np.arange(N) % 2, "pairs": np.arange(N) // 2 % 3, "random": rng.integers(0, 50, N)}[pattern]
    table = make_table(3, codes)

    expected = all_sums(table, "y ~ x + w", dpl.ELE(0.8, block="k"))
    monkeypatch.setattr(prepare, "TILE", 1 << 18)
    assert_equal_sums(expected, all_sums(table, "y ~ x + w", dpl.ELE(0.8, block="k")))
    totals, totalled = np.zeros((2, 50)), rng.random((2, 60))
    reduce._total_blocks(totals, totalled, codes[:60].astype(np.int32), True)
    for row, values in zip(totals, totalled, strict=True):
        np.testing.assert_allclose(row, np.bincount(codes[:60], values, 50))


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_changes_between_passes_stops_the_release(tmp_path: Path) -> None:
    path = one_file(make_table(1), tmp_path)
    found = open_source(path).open(build_design("y ~ x", BOUNDS), dpl.ELE(0.8, block="k"), dpl.PrivacyUnit())
    pq.write_table(make_table(2), path, row_group_size=37)
    with pytest.raises(dpl.ReleaseError, match="changed while it was read"):
        found.instrument_sums()


@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=6), max_size=8), st.integers(0, 8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_dictionaries_are_made_one(parts: list[list[str | None]], batch: int) -> None:
    from dplinked.data.encoding import encode_part

    dictionary, coded = Dictionary(), []
    for k, part in enumerate(parts):
        codes, texts = encode_part(pa.array(part, pa.string()))
        dictionary.add(texts)
        coded.append(codes)
        if k == batch:
            dictionary._unify()
    maps, known = dictionary.finish()
    assert len(set(known.to_pylist())) == len(known)
    for codes, way, part in zip(coded, maps, parts, strict=True):
        assert [known[int(code)].as_py() for code in way[codes]] == part


@pytest.mark.parametrize("end", ['1,"a\n2,b\n', '1,a\n2,"b', '1,"a""\n2,b\n'])
def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path, end: str) -> None:
    """It would swallow all rows after it, and the number of rows would tell."""
    (tmp_path / "a.csv").write_text("x,y\n" + end, encoding="utf-8")
    with pytest.raises(dpl.StudyError, match="never closed"):
        open_source(tmp_path / "a.csv")


def test_a_stream_that_fails_tells_nothing_of_why() -> None:
    """Whatever the code behind a stream raises may quote a cell."""

    def batches():
        yield make_table().to_batches()[0]
        raise ValueError("income 31415")

    reader = pa.RecordBatchReader.from_batches(make_table().schema, batches())
    with pytest.raises(dpl.ReleaseError) as fault:
        open_source(reader)
    assert "31415" not in str(fault.value)
    assert fault.value.__context__ is None


YES = [True, False, True, True, False]
TYPES: dict[str, Any] = {
    "booleans": np.array(YES),
    "an empty cell among booleans": np.array([*YES[:4], np.nan]),
    "a word among floats": np.array([*map(float, YES[:4]), "word"]),
    "a word among whole numbers": np.array([*map(int, YES[:4]), "word"]),
    "a complex number": np.array([*map(int, YES[:4]), 1j]),
    "long doubles": np.array(YES, np.longdouble),
    "objects": np.array([*YES[:4], None], object),
    "texts of booleans": np.array(["True", "False", "true", "TRUE", ""]),
}


@pytest.mark.parametrize("levels", [("false", "true"), ("0", "1"), ("0.0", "1.0")])
@pytest.mark.parametrize("cells", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("frame", [False, True], ids=["arrays", "frame"])
def test_no_cell_changes_the_levels_of_others(cells: Any, levels: tuple[str, ...], frame: bool) -> None:
    """A single cell decides the type of its column, and may not decide which levels other rows have."""
    pandas = pytest.importorskip("pandas")
    column = {"y": cells} if not frame or cells.dtype == np.longdouble else pandas.DataFrame({"y": cells})
    opened = rows.Rows(column)
    opened.check_key("y")
    assert prepare._level_codes(opened, "y", levels)[:4].tolist() == [1, 0, 1, 1]


def test_levels_that_are_the_same_number_are_told_apart_by_their_texts() -> None:
    opened = rows.Rows({"y": np.array(["01", "1", "1.0", "2"])})
    assert prepare._level_codes(opened, "y", ("1", "01", "2")).tolist() == [1, 0, UNDECLARED, 2]
