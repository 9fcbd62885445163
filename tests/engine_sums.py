"""What every verb of an engine returns, under one set of public values, to compare engines by."""

from __future__ import annotations

from typing import Any

import numpy as np

from dplinked.sums.types import Predictor


def every_sum(found: Any) -> dict[str, np.ndarray]:
    """All sums but histograms of columns, which explicit matching matrices do not have."""
    p, d = len(found.design.names), len(found.design.columns)
    predictor = Predictor(np.linspace(-0.3, 0.4, p), np.linspace(-0.1, 0.2, d), 0.8)
    sums, plain = found.instrument_sums(), found.with_design(found.design.unscaled()).paper_sums(1.5, 2.0)
    result = {
        "H": sums.matrix,
        "b": sums.vector,
        "WW": plain.matrix,
        "Wz": plain.vector,
        "zz": np.array([plain.squares]),
        "residuals": found.residual_counts(predictor, np.array([0.1, 0.5, 1.0])).counts,
        "rows": found.row_meat(predictor, np.linspace(1, 2, p), 0.5).matrix,
    }
    if found.blocks is not None:
        result["blocks"] = found.block_meat(predictor, np.linspace(1, 2, p), 0.5).matrix
        result["facts"] = np.array([found.blocks.largest, found.blocks.dependence])
    return result
