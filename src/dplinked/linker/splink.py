"""Probabilistic linking with Splink: a model from the fields' kinds, trained by EM, on DuckDB or Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.errors import DplinkedError, StudyError, raise_alone
from dplinked.linker.assignment import Candidates, assign_sparse
from dplinked.linker.fields import Field
from dplinked.linker.rules import LAST, Links, unlinked_name

ENGINES = ("duckdb", "spark")
_POSITION = "dplinked_position"
_FILES = ("file_a", "file_b")
_LOWEST_WEIGHT = -8.0  # log2 odds under which a pair cannot compete with a link
_LARGE = 200_000  # records in the smaller file
_SAMPLED_PAIRS = 2_000_000  # for the frequencies of chance agreement


def score_pairs(
    left: Any, right: Any, fields: Sequence[Field], *, settings: Any = None, engine: Any = "duckdb", seed: int = 1
) -> Candidates:
    """Compare two Arrow tables with Splink and return its candidate pairs.

    Parameters
    ----------
    left, right
        Tables of texts, one column per field, under the same names.
    fields
        What to compare; unused where `settings` are given.
    settings
        Splink's own settings: a dict, a SettingsCreator, or the path of a JSON file. A model that is trained already
        is used as it is.
    engine
        ``"duckdb"``, ``"spark"`` (the active session, or a local one), or a Spark session.
    """
    fault = "Splink could not link the files"
    with _quiet():
        try:
            return _score_pairs(left, right, fields, settings, engine, seed)
        except DplinkedError:
            raise
        except ImportError:
            raise_alone(StudyError("Probabilistic linking needs Splink: pip install 'dplinked[linkage]'."))
        except Exception as error:  # its messages quote cells
            fault += f" ({type(error).__name__})"
            raise_alone(StudyError(f"{fault}. Check that the fields hold what their kinds say, or give settings=…."))


def _score_pairs(left: Any, right: Any, fields: Sequence[Field], settings: Any, engine: Any, seed: int) -> Candidates:
    import pyarrow.compute as pc
    from splink import Linker

    n, m = left.num_rows, right.num_rows
    prior = min(n, m) / (n * m)
    model = _read_settings(settings) if settings is not None else None
    if model is None:  # a column may be called anything; ours are safe in SQL
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
    """Splink settings from the fields' kinds: comparisons with partial agreement, candidates from several blockings."""
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
    """Columns of which a pair must agree on one set to be compared: an id or a date; else two of the others.

    In large files a date alone is shared by too many: there it counts together with one of the others.
    """
    sharp = [field.name for field in fields if field.kind == "id" or (field.kind == "date" and not large)]
    others = [field.name for field in fields if field.kind in ("name", "postcode", "text")]
    pairs = list(itertools.combinations(others, 2))
    if large:
        pairs = [(f.name, other) for f in fields if f.kind == "date" for other in others] + pairs
    return [*((name,) for name in sharp), *pairs[: 12 if large else 6]] or [(field.name,) for field in fields]


def _train(linker: Any, fields: Sequence[Field] | None, seed: int, large: bool) -> None:
    """Chance agreement from random pairs, agreement of matches by EM from two blockings that train each other's columns."""
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
        if len(order[0]) + len(order[1]) < 2 and len(names) > 3:  # a single name is too weak to find matches by
            sessions[1:] = [tuple(names[1:3])]
        if large and order[1] and order[2]:  # as above: a date alone has too many pairs
            sessions = [(*s, order[2][0]) if s == (order[1][0],) else s for s in sessions]
    for session in sessions if len(names) > 1 else []:
        linker.training.estimate_parameters_using_expectation_maximisation(block_on(*session))


def _read_settings(settings: Any) -> Any:
    if isinstance(settings, (str, Path)):
        try:
            settings = json.loads(Path(settings).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StudyError(f"The Splink settings {Path(settings).name!r} cannot be read as JSON.") from None
    if isinstance(settings, dict):
        settings = {**settings, "link_type": "link_only", "unique_id_column_name": _POSITION}
    else:
        settings.link_type, settings.unique_id_column_name = "link_only", _POSITION
    return settings


def _is_trained(settings: Any) -> bool:
    levels = [
        level
        for comparison in (settings.get("comparisons", []) if isinstance(settings, dict) else [])
        for level in (comparison.get("comparison_levels", []) if isinstance(comparison, dict) else [])
        if not level.get("is_null_level")
    ]
    return bool(levels) and all("m_probability" in level and "u_probability" in level for level in levels)


def _open_engine(engine: Any, left: Any, right: Any) -> tuple[Any, list[Any]]:
    """Splink's database interface, and both tables (with their rows' positions) as it takes them."""
    import pyarrow as pa

    tables = [table.append_column(_POSITION, pa.array(range(table.num_rows), pa.int64())) for table in (left, right)]
    if engine == "duckdb":
        from splink import DuckDBAPI

        return DuckDBAPI(), tables
    if isinstance(engine, str) and engine != "spark":
        raise StudyError(f"engine must be one of {list(ENGINES)} or a Spark session, not {engine!r}.")
    try:
        from pyspark.sql import SparkSession
        from splink import SparkAPI
        from splink.backends.spark import similarity_jar_location
    except ImportError:
        raise StudyError("Linking on Spark needs PySpark: pip install 'dplinked[spark]'.") from None
    session = SparkSession.builder.getOrCreate() if isinstance(engine, str) else engine
    if not session.catalog.functionExists("jaro_winkler"):  # Splink's text comparisons come in a jar of its own
        session.sql("ADD JAR '" + similarity_jar_location() + "'")
    api: Any = SparkAPI(spark_session=session, break_lineage_method="persist")
    return api, [session.createDataFrame(table) for table in tables]


def link_candidates(candidates: Candidates, threshold: float, blocks: NDArray[np.object_], seed: int) -> Links:
    """One-to-one links on log-odds: over the probability threshold first, then the best of the rest, then at random."""
    n, m, rng = candidates.left_count, candidates.right_count, np.random.default_rng(seed)
    right, score = np.full(n, -1), np.full(n, np.nan)
    free_right = np.ones(m, dtype=bool)
    block = blocks.astype(object)

    def take(chosen: NDArray[np.bool_]) -> None:
        left = candidates.left[chosen]
        right[left], score[left] = candidates.right[chosen], candidates.score[chosen]
        free_right[candidates.right[chosen]] = False

    limit = np.log2(threshold / (1.0 - threshold))
    take(assign_sparse(candidates.left, candidates.right, candidates.score - limit))
    block[right < 0] = LAST
    open_pairs = (right[candidates.left] < 0) & free_right[candidates.right]
    take(
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
    """Splink tells its progress through loggers and warnings, and both may hold values."""
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
