"""Probabilistic linking with Splink: the model follows from the fields' kinds, is trained by EM, and runs on DuckDB or Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import DplinkedError, StudyError, raise_alone, shown
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.fields import Field
from dplinked.linker.rules import LAST, Links, unlinked_name

if TYPE_CHECKING:
    import pyarrow as pa

ENGINES = ("duckdb", "spark")
_POSITION = "dplinked_position"
_FILES = ("file_a", "file_b")
_LOWEST_WEIGHT = -8.0  # pairs with lower log2 odds cannot compete with a link
_LARGE = 200_000  # files are large if the smaller one has more records than this
_SAMPLED_PAIRS = 2_000_000  # random pairs from which the frequency of agreement by chance is estimated


def score_pairs(
    left: pa.Table,
    right: pa.Table,
    fields: Sequence[Field],
    *,
    settings: Any = None,
    engine: Any = "duckdb",
    seed: int = 1,
) -> Candidates:
    """Compare two Arrow tables with Splink and return its candidate pairs.

    Parameters
    ----------
    left, right
        Tables of texts with one column per field, under the same names in both.
    fields
        The fields to compare. They are not used if `settings` are given.
    settings
        Splink's own settings, as a dict, a SettingsCreator or the path of a JSON file. A model that is already trained
        is used as it is.
    engine
        ``"duckdb"``, ``"spark"`` (the active session, or else a local one), or a Spark session.
    """
    fault = "Splink could not link the files"
    with _quiet():
        try:
            return _score_pairs(left, right, fields, settings, engine, seed)
        except DplinkedError:
            raise
        except ImportError:
            raise_alone(StudyError("Probabilistic linking needs Splink: pip install 'dplinked[linkage]'."))
        except Exception as error:  # Splink's own messages quote cells
            fault += f" ({type(error).__name__})"
            raise_alone(StudyError(f"{fault}. Check that the fields hold what their kinds say, or give settings=…."))


def _score_pairs(
    left: pa.Table, right: pa.Table, fields: Sequence[Field], settings: Any, engine: Any, seed: int
) -> Candidates:
    import pyarrow.compute as pc
    from splink import Linker

    n, m = left.num_rows, right.num_rows
    prior = min(n, m) / (n * m)
    model = _read_settings(settings) if settings is not None else None
    if model is None:  # a column may have any name, so it gets one that is safe in SQL
        fields = [replace(field, name=f"field_{k}", right=None) for k, field in enumerate(fields)]
        left, right = (table.rename_columns([field.name for field in fields]) for table in (left, right))
    api, tables = _open_engine(engine, left, right)
    frames = [api.register(table, dataset_display_name=name) for table, name in zip(tables, _FILES, strict=True)]
    large = min(n, m) > _LARGE
    linker = Linker(frames, model or default_settings(fields, prior, large=large))
    if model is None or not _is_trained(model):
        _train(linker, fields if model is None else None, seed, large)
    prior = linker.misc.save_model_to_json()["probability_two_random_records_match"]
    pairs = linker.inference.predict(threshold_match_weight=_LOWEST_WEIGHT).as_pyarrow_table()
    positions = [pairs.column(f"{_POSITION}_{side}").to_numpy().astype(np.int64) for side in "lr"]
    swapped = pc.equal(pairs.column("source_dataset_l"), _FILES[1]).to_numpy().astype(bool)
    weight = np.clip(pairs.column("match_weight").to_numpy().astype(np.float64), -60.0, 60.0)
    return Candidates(
        left=np.where(swapped, positions[1], positions[0]),
        right=np.where(swapped, positions[0], positions[1]),
        score=weight,
        evidence=np.exp2(weight) * (1.0 - prior) / prior,
        left_count=n,
        right_count=m,
    )


def default_settings(fields: Sequence[Field], prior: float, *, large: bool = False) -> Any:
    """Splink settings that follow from the fields' kinds: comparisons with partial agreement, and several blocking rules."""
    import splink.comparison_library as cl
    from splink import SettingsCreator, block_on

    make: dict[str, Any] = {
        "name": cl.NameComparison,
        "text": lambda name: cl.JaroWinklerAtThresholds(name, [0.92, 0.8]),
        "date": lambda name: cl.DamerauLevenshteinAtThresholds(name, [1, 2]),
        "id": lambda name: cl.DamerauLevenshteinAtThresholds(name, [1, 2]),
        "postcode": lambda name: cl.DamerauLevenshteinAtThresholds(name, [1]),
        "number": cl.ExactMatch,
    }
    return SettingsCreator(
        link_type="link_only",
        unique_id_column_name=_POSITION,
        probability_two_random_records_match=prior,
        comparisons=[make[field.kind or "text"](field.name) for field in fields],
        blocking_rules_to_generate_predictions=[block_on(*names) for names in candidate_blockings(fields, large=large)],
        retain_matching_columns=False,
        retain_intermediate_calculation_columns=False,
    )


def candidate_blockings(fields: Sequence[Field], *, large: bool = False) -> list[tuple[str, ...]]:
    """Sets of columns for Splink's blocking rules: a pair is compared if it agrees on all columns of at least one set.

    Each id and each date is a set of its own, and so is every pair of other columns. In large files too many records share a date, so
    there a date is combined with one other column.
    """
    sharp = [field.name for field in fields if field.kind == "id" or (field.kind == "date" and not large)]
    others = [field.name for field in fields if field.kind in ("name", "postcode", "text")]
    pairs = list(itertools.combinations(others, 2))
    if large:
        pairs = [(f.name, other) for f in fields if f.kind == "date" for other in others] + pairs
    return [*((name,) for name in sharp), *pairs[: 12 if large else 6]] or [(field.name,) for field in fields]


def _train(linker: Any, fields: Sequence[Field] | None, seed: int, large: bool) -> None:
    """Train the model: agreement by chance from random pairs, agreement of matches by EM.

    EM runs twice, on pairs that agree on different columns, since a column that all pairs agree on cannot be trained.
    """
    from splink import block_on

    linker.training.estimate_u_using_random_sampling(max_pairs=_SAMPLED_PAIRS, seed=seed)
    sessions: list[tuple[str, ...]]
    if fields is None:
        names = [comparison.output_column_name for comparison in linker._settings_obj.comparisons]
        sessions = [(name,) for name in names[:2]]
    else:
        order = [
            [f.name for f in fields if f.kind == kind] for kind in ("id", "date", "name", "postcode", "text", "number")
        ]
        names = list(itertools.chain.from_iterable(order))
        sessions = [(name,) for name in names[:2]]
        if len(order[0]) + len(order[1]) < 2 and len(names) > 3:  # a single name is too common to find matches by
            sessions[1:] = [tuple(names[1:3])]
        if large and order[1] and order[2]:  # in large files too many pairs share a date
            sessions = [(*s, order[2][0]) if s == (order[1][0],) else s for s in sessions]
    for session in sessions if len(names) > 1 else []:
        linker.training.estimate_parameters_using_expectation_maximisation(block_on(*session))


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


def link_candidates(candidates: Candidates, threshold: float, blocks: NDArray[np.object_], seed: int) -> Links:
    """Link candidates one to one: first pairs over the probability threshold, then the best of the rest, then at random."""
    n, m, rng = candidates.left_count, candidates.right_count, np.random.default_rng(seed)
    right, score = np.full(n, -1), np.full(n, np.nan)
    free_right = np.ones(m, dtype=bool)
    block = blocks.astype(object)

    def add_links(chosen: NDArray[np.bool_]) -> None:
        left = candidates.left[chosen]
        right[left], score[left] = candidates.right[chosen], candidates.score[chosen]
        free_right[candidates.right[chosen]] = False

    limit = np.log2(threshold / (1.0 - threshold))
    add_links(assign_sparse(candidates.left, candidates.right, candidates.score - limit))
    block[right < 0] = LAST
    open_pairs = (right[candidates.left] < 0) & free_right[candidates.right]
    add_links(
        assign_sparse(
            candidates.left, candidates.right, np.where(open_pairs, candidates.score - 2.0 * _LOWEST_WEIGHT, -1.0)
        )
    )
    left_over, right_over = np.flatnonzero(right < 0), np.flatnonzero(free_right)
    few = min(left_over.size, right_over.size)
    right[rng.permutation(left_over)[:few]] = rng.permutation(right_over)[:few]
    block[right < 0] = unlinked_name(right)
    return Links(right, score, block, candidates)


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
