"""Probabilistic linking with Splink: the model follows from the fields' kinds, is trained by EM, and runs on DuckDB or Spark."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import DplinkedError, StudyError, raise_alone, shown
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.explain import PRIOR, Explanation
from dplinked.linker.fields import Comparer, Field
from dplinked.linker.passes import BlockingPass, Key, Plan, choose_passes, make_keys, pair_budget, plan_pass
from dplinked.linker.rules import FURTHER, LAST, Links, settle_groups

if TYPE_CHECKING:
    import pyarrow as pa

Integers = NDArray[np.int64]
T = TypeVar("T")

ENGINES = ("duckdb", "spark")
_POSITION = "dplinked_position"
_PASS = "dplinked_pass_"
_FILES = ("file_a", "file_b")
_RUNS = itertools.count()
_LOWEST_WEIGHT = -8.0  # pairs with lower log2 odds cannot compete with a link
_LARGE = 200_000  # files are large if the smaller one has more records than this
_LEAST_BUDGET = 500_000  # pairs that are always worth comparing
_SAMPLED_PAIRS = 2_000_000  # random pairs from which the frequency of agreement by chance is estimated


@dataclass(frozen=True)
class Scored:
    """Candidates of Splink, the pass that found each of them (N), all passes, and the model that scored them."""

    candidates: Candidates
    found_by: NDArray[np.int64]
    passes: tuple[BlockingPass, ...]
    model: Any


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
    model = _read_settings(settings)
    columns = left.column_names
    train = None if _is_trained(model) else lambda linker: _train_settings(linker, columns)
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
        train = functools.partial(_train, comparers=comparers, large=large)
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
    positions = [pairs.column(f"{_POSITION}_{side}").to_numpy().astype(np.int64) for side in "lr"]
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


def default_settings(fields: Sequence[Field], prior: float) -> Any:
    """Splink settings that follow from how fields are compared: comparisons with partial agreement."""
    import splink.comparison_library as cl
    from splink import SettingsCreator

    make: dict[str, Any] = {
        "name": cl.NameComparison,
        "text": lambda name: cl.JaroWinklerAtThresholds(name, [0.92, 0.8]),
        "id": lambda name: cl.DamerauLevenshteinAtThresholds(name, [1, 2]),
        "postcode": lambda name: cl.DamerauLevenshteinAtThresholds(name, [1]),
    }
    graded = {"date": _compare_dates, "number": _compare_numbers}
    return SettingsCreator(
        link_type="link_only",
        unique_id_column_name=_POSITION,
        probability_two_random_records_match=prior,
        comparisons=[
            graded[field.compare](field)
            if field.compare in graded
            else make.get(field.kind or "text", make["text"])(field.name)
            for field in fields
        ],
        retain_matching_columns=False,
        retain_intermediate_calculation_columns=False,
    )


def _compare_dates(field: Field) -> Any:
    """The same day, a letter off, few days apart, two letters off, or other days."""
    import splink.comparison_level_library as level
    import splink.comparison_library as cl

    day, name = f"{field.name}_day", field.name
    return cl.CustomComparison(
        output_column_name=name,
        comparison_levels=[
            level.NullLevel(name), level.ExactMatchLevel(name), level.DamerauLevenshteinLevel(name, 1),
            level.AbsoluteDifferenceLevel(day, field.near or 0.0), level.DamerauLevenshteinLevel(name, 2), level.ElseLevel(),
        ],
    )  # fmt: skip


def _compare_numbers(field: Field) -> Any:
    """Within the tolerance, near, a tenth apart at most, or farther."""
    import splink.comparison_level_library as level
    import splink.comparison_library as cl

    name, tolerance, near = field.name, field.tolerance, field.near or 0.0
    graded = [level.AbsoluteDifferenceLevel(name, tolerance) if tolerance else level.ExactMatchLevel(name)]
    graded += [level.AbsoluteDifferenceLevel(name, near)] * (near > tolerance) + [
        level.PercentageDifferenceLevel(name, 0.1)
    ]
    return cl.CustomComparison(
        output_column_name=name, comparison_levels=[level.NullLevel(name), *graded, level.ElseLevel()]
    )


def _train(linker: Any, comparers: Sequence[Comparer], large: bool) -> None:
    """Train the model: agreement by chance from random pairs, agreement of matches by EM.

    EM runs twice, on pairs that agree on different columns, since a column that all pairs agree on cannot be trained. Columns that no pair agrees on are passed over.
    """
    from splink import block_on

    linker.training.estimate_u_using_random_sampling(max_pairs=_SAMPLED_PAIRS, seed=1)
    order = [
        [comparer.field.name for comparer in comparers if comparer.field.kind == kind]
        for kind in ("id", "date", "name", "postcode", "text", "number")
    ]
    names = list(itertools.chain.from_iterable(order))
    sessions: list[tuple[str, ...]] = [(name,) for name in names]
    if len(order[0]) + len(order[1]) < 2 and len(names) > 3:  # a single name is too common to find matches by
        sessions.insert(1, tuple(names[1:3]))
    if large and order[1] and order[2]:  # in large files too many pairs share a date
        sessions = [(*s, order[2][0]) if s == (order[1][0],) else s for s in sessions]
    keys = {
        one.field.name: Key("", k, one.left.astype(np.int64), one.right.astype(np.int64), False)
        for k, one in enumerate(comparers)
    }
    usable = (session for session in sessions if plan_pass([keys[name] for name in session]).pairs > 0)
    for session in itertools.islice(usable, 2) if len(names) > 1 else []:
        linker.training.estimate_parameters_using_expectation_maximisation(block_on(*session))


def _train_settings(linker: Any, columns: Sequence[str]) -> None:
    """Train a model that was given: EM on pairs that agree on one of its columns, or by the rules that make its candidates."""
    from splink import block_on

    linker.training.estimate_u_using_random_sampling(max_pairs=_SAMPLED_PAIRS, seed=1)
    model = linker.misc.save_model_to_json()
    names = [comparison["output_column_name"] for comparison in model["comparisons"]]
    rules = [block_on(name) for name in names if name in columns]
    if len(rules) < 2:
        rules = [rule["blocking_rule"] for rule in model["blocking_rules_to_generate_predictions"]]
    for rule in rules[:2] if len(names) > 1 else []:
        linker.training.estimate_parameters_using_expectation_maximisation(rule)


def _read_settings(settings: Any) -> Any:
    """Splink's settings for linking two files by our id column, given in any of the accepted forms."""
    if isinstance(settings, (str, Path)):
        try:
            settings = json.loads(Path(settings).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StudyError(f"The Splink settings {shown(Path(settings).name)} cannot be read as JSON.") from None
    if isinstance(settings, dict):
        settings = {**settings, "link_type": "link_only", "unique_id_column_name": _POSITION}
    else:
        settings.link_type, settings.unique_id_column_name = "link_only", _POSITION
    return settings


def _is_trained(settings: Any) -> bool:
    """Whether settings hold the probabilities of all comparison levels."""
    levels = [
        level
        for comparison in (settings.get("comparisons", []) if isinstance(settings, dict) else [])
        for level in (comparison.get("comparison_levels", []) if isinstance(comparison, dict) else [])
        if not level.get("is_null_level")
    ]
    return bool(levels) and all("m_probability" in level and "u_probability" in level for level in levels)


def _open_engine(engine: Any, left: pa.Table, right: pa.Table) -> tuple[Any, list[Any]]:
    """Splink's database interface, and both tables in the form it takes, with a column of row positions added."""
    import pyarrow as pa

    tables = [table.append_column(_POSITION, pa.array(range(table.num_rows), pa.int64())) for table in (left, right)]
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


def log_odds(probability: float) -> float:
    """A probability as Splink's match weight."""
    return float(np.log2(probability / (1.0 - probability)))


def link_scored(
    first: Scored, further: Scored | None, threshold: float, blocks: NDArray[np.object_], seed: int, carriers: int = 1
) -> Links:
    """Link candidates one to one, or up to `carriers` rows to one record: first pairs over the probability threshold, then the best of the rest, then at random."""
    candidates, found_by = first.candidates, first.found_by
    late = np.zeros(candidates.left.size, dtype=bool)  # found by a further pass
    passes = first.passes
    if further is not None:
        candidates, found_by, late = _with_further(first, further)
        passes = (*first.passes, *further.passes)
    n, m, rng = candidates.left_count, candidates.right_count, np.random.default_rng(seed)
    right, score = np.full(n, -1), np.full(n, np.nan)
    room = np.full(m, carriers)
    block, used = blocks.astype(object), np.zeros(len(passes), dtype=np.int64)

    def add_links(gain: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        chosen = assign_sparse(candidates.left, candidates.right, gain, None if carriers == 1 else room)
        left = candidates.left[chosen]
        right[left], score[left] = candidates.right[chosen], candidates.score[chosen]
        np.subtract.at(room, candidates.right[chosen], 1)
        np.add.at(used, found_by[chosen], 1)
        return left, late[chosen]

    add_links(np.where(late, -1.0, candidates.score - log_odds(threshold)))
    block[right < 0] = LAST
    open_pairs = (right[candidates.left] < 0) & (room[candidates.right] > 0)
    rows, by_further = add_links(np.where(open_pairs, candidates.score - candidates.score.min(initial=0.0) + 1.0, -1.0))
    block[rows] = np.where(by_further, FURTHER, blocks[rows])
    below = np.zeros(n, dtype=bool)
    below[rows] = ~by_further
    left_over, right_over = np.flatnonzero(right < 0), np.repeat(np.arange(m), room)
    few = min(left_over.size, right_over.size)
    right[rng.permutation(left_over)[:few]] = rng.permutation(right_over)[:few]
    settle_groups(block, right, below)
    counted = [
        one if one.found is None else replace(one, linked=int(links)) for one, links in zip(passes, used, strict=True)
    ]
    return Links(
        right, score, block, candidates, passes=tuple(counted), below=below, model=first.model, carriers=carriers
    )


def _with_further(first: Scored, further: Scored) -> tuple[Candidates, NDArray[np.int64], NDArray[np.bool_]]:
    """The candidates of all passes, each once: what found them, and whether that was a further pass."""
    a, b = first.candidates, further.candidates
    new = ~np.isin(b.left * b.right_count + b.right, a.left * a.right_count + a.right)
    left, right, score, evidence = (
        np.concatenate([getattr(a, name), getattr(b, name)[new]]) for name in ("left", "right", "score", "evidence")
    )
    joined = Candidates(left, right, score, evidence, a.left_count, a.right_count)
    found_by = np.concatenate([first.found_by, further.found_by[new] + len(first.passes)])
    return joined, found_by, np.arange(found_by.size) >= a.left.size


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
