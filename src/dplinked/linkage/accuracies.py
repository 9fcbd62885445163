"""Accuracies of links as they are declared: one number, one per block, or a table."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from dplinked.data.keys import key_text, number
from dplinked.errors import StudyError, plain_number, raise_alone, shown


def checked_accuracy(value: Any, what: str) -> float:
    """Return an accuracy as a number in (0, 1]; `what` names it in the error."""
    accuracy = plain_number(value)
    if not 0.0 < accuracy <= 1.0:
        raise StudyError(f"{what} must lie in (0, 1], not {shown(value)}.")
    return accuracy


def checked_per_block(value: Any, what: str, low: float, high: float) -> float | dict[str, float] | None:
    """Return a number, or one per block, and refuse any outside ``low <= number < high``."""
    if value is None:
        return None
    listed = value.values() if isinstance(value, Mapping) else [value]
    if not all(isinstance(v, (int, float)) and low <= v < high for v in listed):
        raise StudyError(
            f"{what} must be a number from {low:g}{'' if high == math.inf else f' to below {high:g}'}, or one per block."
        )
    return {str(key_text(key)): float(v) for key, v in value.items()} if isinstance(value, Mapping) else float(value)


def checked_accuracies(accuracy: Any, block: str | None) -> float | dict[str, float]:
    """Return one accuracy for all blocks, or one per block under the text of the block's key."""
    if isinstance(accuracy, (int, float, np.number)):
        return checked_accuracy(accuracy, "accuracy")
    if block is None:
        raise StudyError("Accuracy per block needs the name of the block column: ELE(accuracy=…, block=…).")
    table = accuracy if isinstance(accuracy, Mapping) else _accuracy_from_table(accuracy, block)
    if not table:
        raise StudyError("The accuracy table is empty. Give at least one block.")
    declared: dict[str, float] = {}
    for key, value in table.items():
        text = key_text(key)
        if text is None or text in declared:
            raise StudyError("The accuracy table names a block twice, or not by a key: use other=… for null keys.")
        declared[text] = number(value)
    if not all(
        0.0 < accuracy <= 1.0 for accuracy in declared.values()
    ):  # which one is not told: rows may stand in their place
        raise StudyError("The accuracy of every block must be a number in (0, 1].")
    return declared


def _accuracy_from_table(table: Any, block: str) -> dict[Hashable, float]:
    """Read ``{block: accuracy}`` from any table with the block column and a column ``accuracy``."""
    import narwhals as nw

    frame = None
    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        raise_alone(
            StudyError(f"accuracy must be a number in (0, 1], a mapping or a table of accuracies, not {shown(table)}.")
        )
    if not {block, "accuracy"} <= set(frame.columns):
        raise StudyError(f"The accuracy table needs the columns {shown(block)} and 'accuracy'.")
    keys = frame.get_column(block).to_list()
    if len(set(map(key_text, keys))) != len(keys):
        raise StudyError(f"The accuracy table names a block twice in {shown(block)}. Give each block one row.")
    return dict(zip(keys, frame.get_column("accuracy").to_list(), strict=True))
