"""Rows of the model matrix of new data, for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.keys import key_text, number
from dplinked.errors import StudyError, raise_alone, suggest
from dplinked.release.contents import Declared
from dplinked.study.build import build_design

Floats = NDArray[np.float64]


def model_rows(data: Any, formula: str, declared: Declared) -> tuple[Floats, Floats]:
    """Rows of the model matrix (n×p) of new data in the user's units, clipped to the declared bounds, and logarithms of exposures (n), 0 where there are none.

    The response is not needed.
    """
    import narwhals as nw

    whole = build_design(
        formula, declared.bounds, declared.levels, None, declared.fill, declared.family, declared.exposure
    )
    design = whole.unscaled()
    spared = {*design.response_variables, *([] if declared.exposure is None else [declared.exposure])}
    if not isinstance(data, Mapping):
        try:
            data = nw.from_native(data, eager_only=True).to_dict(as_series=False)
        except TypeError:
            raise_alone(
                StudyError(
                    "Give the rows to predict as a table or as a mapping of columns, like {'income': [20_000, 60_000]}."
                )
            )
    for name in design.variables:
        if name not in data and name not in spared:
            raise StudyError(f"Column {name!r} is not in the rows to predict.{suggest(name, data)}")
    columns = {name: list(values) if np.ndim(values) else [values] for name, values in data.items()}
    count = max((len(columns[name]) for name in design.variables if name in columns), default=1)
    raw = {
        name: np.fromiter(map(number, columns[name]), np.float64)
        if name in columns and name not in design.response_variables
        else np.zeros(count)
        for name in design.bounds
    }
    codes = {}
    for name, levels in design.levels.items():
        if name in design.response_variables:
            continue
        known = {key_text(level): i for i, level in enumerate(levels)}
        texts = [key_text(value) for value in columns[name]]
        if any(text not in known for text in texts):  # what stands there may be data, so it is not told
            raise StudyError(
                f"Column {name!r} of the rows to predict has cells that are none of its declared levels: {', '.join(map(repr, known))}."
            )
        codes[name] = np.array([known[text] for text in texts], dtype=np.int32)
    x, exposure = np.empty((len(design.columns), count)), np.zeros(count)
    design.regressors(design.numbers(raw), codes, x)
    if design.exposure is not None and declared.exposure in columns:
        design.exposure.write(design.numbers(raw), codes, exposure)
    return (np.vstack([np.ones(count), x]).T if design.intercept else x.T), exposure


def prediction_frame(rows: Any, found: Sequence[tuple[float, float, float]]) -> Any:
    """Predictions as a frame of the same kind as the rows; that of a pandas frame has its index."""
    import narwhals as nw

    given, columns = nw.from_native(rows, eager_only=True), np.array(found, dtype=np.float64).reshape(-1, 3)
    named = {name: columns[:, k] for k, name in enumerate(("mean", "low", "high"))}
    frame = nw.from_dict(named, backend=given.implementation).to_native()
    if given.implementation.is_pandas():
        frame.index = rows.index
    return frame
