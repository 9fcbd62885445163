"""Splink's model: the default one, which follows from the fields' kinds, one that was given, and how both are trained."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dplinked.errors import StudyError, shown
from dplinked.linker.fields import Comparer, Field
from dplinked.linker.passes import Key, plan_pass

POSITION = "dplinked_position"
_SAMPLED_PAIRS = 2_000_000  # random pairs from which the frequency of agreement by chance is estimated


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
        unique_id_column_name=POSITION,
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


def train_default(linker: Any, comparers: Sequence[Comparer], large: bool) -> None:
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


def train_settings(linker: Any, columns: Sequence[str]) -> None:
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


def read_settings(settings: Any) -> Any:
    """Splink's settings for linking two files by our id column, given in any of the accepted forms."""
    if isinstance(settings, (str, Path)):
        try:
            settings = json.loads(Path(settings).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StudyError(f"The Splink settings {shown(Path(settings).name)} cannot be read as JSON.") from None
    if isinstance(settings, dict):
        settings = {**settings, "link_type": "link_only", "unique_id_column_name": POSITION}
    else:
        settings.link_type, settings.unique_id_column_name = "link_only", POSITION
    return settings


def is_trained(settings: Any) -> bool:
    """Whether settings hold the probabilities of all comparison levels."""
    levels = [
        level
        for comparison in (settings.get("comparisons", []) if isinstance(settings, dict) else [])
        for level in (comparison.get("comparison_levels", []) if isinstance(comparison, dict) else [])
        if not level.get("is_null_level")
    ]
    return bool(levels) and all("m_probability" in level and "u_probability" in level for level in levels)
