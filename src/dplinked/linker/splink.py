"""Probabilistic linking with Splink: the model follows from the fields' kinds, is trained by EM, and runs on DuckDB or Spark."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import DplinkedError, StudyError, raise_alone, shown
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.explain import PRIOR, Explanation
from dplinked.linker.fields import Comparer, Field
from dplinked.linker.passes import BlockingPass, Plan, choose_passes, make_keys, pair_budget
from dplinked.linker.rules import Links
from dplinked.linker.scored import Scored, link_scored, log_odds
from dplinked.linker.splink_model import (
    POSITION,
    default_settings,
    is_trained,
    read_settings,
    train_default,
    train_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa

Integers = NDArray[np.int64]
T = TypeVar("T")

ENGINES = ("duckdb", "spark")
_PASS = "dplinked_pass_"
_FILES = ("file_a", "file_b")
_RUNS = itertools.count()
_LOWEST_WEIGHT = -8.0  # pairs with lower log2 odds cannot compete with a link
_LARGE = 200_000  # files are large if the smaller one has more records than this
_LEAST_BUDGET = 500_000  # pairs that are always worth comparing


def link_by_splink(
    comparers: Sequence[Comparer],
    *,
    engine: Any,
    threshold: float,
    blocks: NDArray[np.object_],
    seed: int,
    trained: dict[str, Any] | None = None,
    carriers: int = 1,
) -> Links:
    """Link two files by Splink's match weights, one to one, with a model that follows from the fields.

    Parameters
    ----------
    comparers
        The fields to compare.
    engine
        ``"duckdb"``, ``"spark"`` (the active session, or else a local one), or a Spark session.
    threshold
        Least match probability of a link that stays in its block.
    blocks
        Group of each left record, if its link is over the threshold (n).
    trained
        A model that was trained before; by default one is trained.
    carriers
        How many left records may be linked to one right record.

    Notes
    -----
    Links over the threshold are made first. The records that they leave over are compared in further passes, within coarser keys or each with each: they are
    fewer, so that more of their pairs can be compared.
    """
    first = _guarded(lambda: _score_files(comparers, engine, trained))
    candidates, further = first.candidates, None
    room = np.full(candidates.right_count, carriers)
    sure = assign_sparse(candidates.left, candidates.right, candidates.score - log_odds(threshold), room)
    np.subtract.at(room, candidates.right[sure], 1)
    rest = np.setdiff1d(np.arange(candidates.left_count), candidates.left[sure]), np.flatnonzero(room > 0)
    if min(rest[0].size, rest[1].size) > 0:
        further = _guarded(lambda: _score_rest(rest, comparers, first.model, engine))
    return link_scored(first, further, threshold, blocks, seed, carriers)


def score_by_settings(left: pa.Table, right: pa.Table, settings: Any, engine: Any) -> Scored:
    """Score the pairs of two tables by Splink's own settings: a dict, a SettingsCreator or the path of a JSON file.

    A model that is already trained is used as it is.
    """
    model = read_settings(settings)
    columns = left.column_names
    train = None if is_trained(model) else lambda linker: train_settings(linker, columns)
    return _guarded(lambda: _score(left, right, [], model, engine, train=train))


def own_columns(table: pa.Table, fields: Sequence[Field], block: Sequence[str], where: str) -> pa.Table:
    """Fields and block columns of one file as they are, under the names they have in the left file. Splink gets no others: what links were made by is on record."""
    import pyarrow as pa

    columns = {name: table.column(name) for name in block}
    columns |= {field.name: table.column(field.name if where == "left" else str(field.right)) for field in fields}
    return pa.table(
        {
            name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for name, column in columns.items()
        }
    )


def _guarded(score: Callable[[], T]) -> T:
    """Score pairs, silently; Splink's faults come without their messages, which quote cells."""
    fault = "Splink could not link the files"
    with _quiet():
        try:
            return score()
        except DplinkedError:
            raise
        except ImportError:
            raise_alone(StudyError("Probabilistic linking needs Splink: pip install 'dplinked[linkage]'."))
        except Exception as error:
            fault += f" ({type(error).__name__})"
            raise_alone(
                StudyError(
                    f"{fault}. Check that the fields hold what their kinds say, or that settings=… name only fields and blocks and take them in the types they have."
                )
            )


def _score_files(comparers: Sequence[Comparer], engine: Any, trained: dict[str, Any] | None) -> Scored:
    """Train a model, unless there is one, and score the pairs of its passes."""
    n, m = comparers[0].left.size, comparers[0].right.size
    plans, dear = choose_passes(make_keys(comparers), pair_budget(n, m, _LEAST_BUDGET))
    comparers = _safely_named(comparers)
    prior, large = min(n, m) / (n * m), min(n, m) > _LARGE
    if trained is not None:  # it was trained on files of other sizes
        model: Any = {**trained, "probability_two_random_records_match": prior}
        scored = _score(*_tables(comparers), plans, model, engine)
    else:
        model = default_settings([one.field for one in comparers], prior)
        train = functools.partial(train_default, comparers=comparers, large=large)
        scored = _score(*_tables(comparers), plans, model, engine, train=train)
    return replace(scored, passes=(*scored.passes, *dear))


def _score_rest(
    rest: tuple[NDArray[np.int64], NDArray[np.int64]], comparers: Sequence[Comparer], model: Any, engine: Any
) -> Scored:
    """Score pairs of the records that are left over, by the model of all of them."""
    keys = [key.of(*rest) for key in make_keys(comparers)]
    plans, _ = choose_passes(keys, pair_budget(rest[0].size, rest[1].size, _LEAST_BUDGET))
    tables = [table.take(rows) for table, rows in zip(_tables(_safely_named(comparers)), rest, strict=True)]
    n, m = comparers[0].left.size, comparers[0].right.size
    fewer = np.log2(n / rest[0].size)  # among fewer records, a pair needs less evidence to compete
    found = _score(tables[0], tables[1], plans, model, engine, lowest=_LOWEST_WEIGHT - fewer)
    of = found.candidates
    candidates = Candidates(rest[0][of.left], rest[1][of.right], of.score, of.evidence, n, m)
    named = [replace(one, name=f"left over: {one.name}") for one in found.passes]
    return replace(found, candidates=candidates, passes=tuple(named))


def _safely_named(comparers: Sequence[Comparer]) -> list[Comparer]:
    """The same fields under names that are safe in SQL, since a column may have any name."""
    return [
        replace(comparer, field=replace(comparer.field, name=f"field_{k}", right=None))
        for k, comparer in enumerate(comparers)
    ]


def _score(
    left: pa.Table, right: pa.Table, plans: Sequence[Plan], model: Any, engine: Any, *, train: Callable[[Any], None] | None = None,
    lowest: float = _LOWEST_WEIGHT,
) -> Scored:  # fmt: skip
    """Score the pairs of some passes, or of those that the model's own settings name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs, trained, swapping = _predict(left, right, plans, model, engine, train, lowest)
    positions = [pairs.column(f"{POSITION}_{side}").to_numpy().astype(np.int64) for side in "lr"]
    swapped = pc.equal(pairs.column("source_dataset_l"), swapping).to_numpy().astype(bool)
    weight = np.clip(pairs.column("match_weight").to_numpy().astype(np.float64), -60.0, 60.0)
    prior = trained["probability_two_random_records_match"]
    found_by = pairs.column("match_key").cast(pa.int64()).to_numpy()
    rules = trained["blocking_rules_to_generate_predictions"]
    named: list[tuple[str, int | None]] = [(plan.name, plan.pairs) for plan in plans]
    if not plans:
        named = [(str(rule["blocking_rule"]), None) for rule in rules]
    counts = np.bincount(found_by, minlength=len(named)).tolist()
    return Scored(
        Candidates(
            left=np.where(swapped, positions[1], positions[0]),
            right=np.where(swapped, positions[0], positions[1]),
            score=weight,
            evidence=np.exp2(weight) * (1.0 - prior) / prior,
            left_count=left.num_rows,
            right_count=right.num_rows,
        ),
        found_by,
        tuple(BlockingPass(name, pairs, count) for (name, pairs), count in zip(named, counts, strict=True)),
        trained,
    )


def _predict(
    left: pa.Table, right: pa.Table, plans: Sequence[Plan], model: Any, engine: Any, train: Callable[[Any], None] | None, lowest: float | None
) -> tuple[pa.Table, dict[str, Any], str]:  # fmt: skip
    """Splink's table of the pairs of some passes, its trained model, and the name by which it knows the right file."""
    import pyarrow as pa
    from splink import Linker, block_on

    for k, plan in enumerate(plans):
        left, right = (
            table.append_column(f"{_PASS}{k}", pa.array(codes, mask=codes < 0))
            for table, codes in ((left, plan.left), (right, plan.right))
        )
    if plans and isinstance(model, dict):  # a trained model, which gets other passes
        rules = [f"l.{_PASS}{k} = r.{_PASS}{k}" for k in range(len(plans))]
        model = {**model, "blocking_rules_to_generate_predictions": rules}
    elif plans:
        model.blocking_rules_to_generate_predictions = [block_on(f"{_PASS}{k}") for k in range(len(plans))]
    api, tables = _open_engine(engine, left, right)
    names = [f"{name}_{next(_RUNS)}" for name in _FILES]  # a session keeps its tables, and takes no name twice
    frames = [api.register(table, dataset_display_name=name) for table, name in zip(tables, names, strict=True)]
    linker = Linker(frames, model)
    if train is not None:
        train(linker)
    trained = linker.misc.save_model_to_json()
    pairs = linker.inference.predict(threshold_match_weight=lowest).as_pyarrow_table()
    return pairs, trained, names[1]


def explain_by_splink(
    left: pa.Table, right: pa.Table, pairs: tuple[Integers, Integers], model: dict[str, Any], names: Mapping[str, str], engine: Any
) -> Explanation:  # fmt: skip
    """Explain pairs of records, given by position, by Splink's match weights: what its model starts from, and what each comparison adds.

    Parameters
    ----------
    left, right
        All records of both files as the model takes them, since it looks at how frequent a value is.
    names
        Fields by the names that the model has for them.
    """
    codes = [np.full(table.num_rows, -1) for table in (left, right)]
    for place, of_file in zip(pairs, codes, strict=True):
        of_file[place] = np.arange(place.size)
    shown = {**model, "retain_matching_columns": True, "retain_intermediate_calculation_columns": True}
    plan = Plan("pairs", codes[0], codes[1], pairs[0].size)
    found = _guarded(lambda: _predict(left, right, [plan], shown, engine, None, None))[0]
    order = np.argsort(_numbers(found, f"{_PASS}0_l"))
    parts = [(comparison["output_column_name"], _labels(comparison)) for comparison in model["comparisons"]]
    prior = log_odds(model["probability_two_random_records_match"])
    weights, words = [np.full(pairs[0].size, prior)], [[""] * pairs[0].size]
    for name, labels in parts:
        added = [column for column in (f"mw_{name}", f"mw_tf_adj_{name}") if column in found.column_names]
        weights.append(np.sum([_numbers(found, column) for column in added], axis=0)[order])
        levels = _numbers(found, f"gamma_{name}")[order].astype(np.int64)
        words.append([labels[level].replace(name, names.get(name, name)) for level in levels.tolist()])
    told = [list(row) for row in zip(*words, strict=True)]
    return Explanation((PRIOR, *(names.get(name, name) for name, _ in parts)), np.column_stack(weights), told)


def _labels(comparison: Mapping[str, Any]) -> dict[int, str]:
    """What Splink calls the levels of a comparison, by their numbers: -1 for a missing value, the others from the best down to 0."""
    levels = comparison["comparison_levels"]
    labels = [str(level.get("label_for_charts", "")) for level in levels if not level.get("is_null_level")]
    return {-1: "missing", **dict(zip(range(len(labels) - 1, -1, -1), labels, strict=True))}


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column as numbers."""
    return np.asarray(table.column(name).to_numpy(), np.float64)


def named_tables(comparers: Sequence[Comparer]) -> tuple[pa.Table, pa.Table, dict[str, str]]:
    """Both files as the default model takes them, and the fields by the names that it has for them."""
    safe = _safely_named(comparers)
    return *_tables(safe), {one.field.name: other.field.name for one, other in zip(safe, comparers, strict=True)}


def _tables(comparers: Sequence[Comparer]) -> tuple[pa.Table, pa.Table]:
    """Both files as Splink compares them: normalised texts, numbers, and dates as texts with the number of the day."""
    import pyarrow as pa

    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for comparer in comparers:
        name, values = comparer.field.name, comparer.values
        if comparer.field.compare == "date":
            columns = {
                name: [f"{y:04}-{m:02}-{d:02}" for y, m, d in values[:, :3].tolist()],
                f"{name}_day": values[:, 3].astype(np.float64),
            }
        else:
            columns = {name: values}
        for side, codes in zip(sides, (comparer.left, comparer.right), strict=True):
            for column, distinct in columns.items():
                array = pa.array(
                    distinct,
                    pa.float64() if isinstance(distinct, np.ndarray) and distinct.dtype.kind == "f" else pa.string(),
                )
                side[column] = array.take(pa.array(codes, mask=codes < 0))
    return pa.table(sides[0]), pa.table(sides[1])


def _open_engine(engine: Any, left: pa.Table, right: pa.Table) -> tuple[Any, list[Any]]:
    """Splink's database interface, and both tables in the form it takes, with a column of row positions added."""
    import pyarrow as pa

    tables = [table.append_column(POSITION, pa.array(range(table.num_rows), pa.int64())) for table in (left, right)]
    if engine == "duckdb":
        from splink import DuckDBAPI

        return DuckDBAPI(), tables
    if isinstance(engine, str) and engine != "spark":
        raise StudyError(f"engine must be one of {list(ENGINES)} or a Spark session, not {shown(engine)}.")
    try:
        from pyspark.sql import SparkSession
        from splink import SparkAPI
        from splink.backends.spark import similarity_jar_location
    except ImportError:
        raise StudyError("Linking on Spark needs PySpark: pip install 'dplinked[spark]'.") from None
    session = SparkSession.builder.getOrCreate() if isinstance(engine, str) else engine
    if not session.catalog.functionExists("jaro_winkler"):  # Splink's text comparisons are in a jar that comes with it
        session.sql("ADD JAR '" + similarity_jar_location() + "'")
    api: Any = SparkAPI(spark_session=session, break_lineage_method="persist")
    return api, [session.createDataFrame(table) for table in tables]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Splink's log messages and warnings, since both may quote cells."""
    loggers = [logging.getLogger(name) for name in ("splink", "splink.internals")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
