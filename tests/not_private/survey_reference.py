"""Writes `survey_reference.json`: survey regressions by the package svy, whose errors are those of R's `svyglm`.

It needs newer packages than the rest, so it runs in an environment of its own: `pip install svy`, then `python tests/not_private/survey_reference.py`.
`test_wls.py` reads what it wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl

N, VILLAGES = 300, 30
RESULT = Path(__file__).with_suffix(".json")


def draw_sample() -> dict[str, list[float] | list[int] | list[str]]:
    """A sample of villages drawn in three areas, with unequal weights that go with the response."""
    rng = np.random.default_rng(12)
    village = rng.integers(0, VILLAGES, N)
    x = np.round(rng.normal(size=N) + rng.normal(size=VILLAGES)[village], 3)
    y = 1.0 + 2.0 * x + rng.normal(size=N) * (1.0 + np.abs(x)) + rng.normal(size=VILLAGES)[village] + village // 10
    weight = np.exp(0.3 * y + rng.normal(size=N) / 2)
    sex = rng.choice(["f", "m"], N)
    return {
        "x": x.tolist(),
        "y": np.round(y, 3).tolist(),
        "w": np.round(np.clip(weight, 0.5, 20.0), 3).tolist(),
        "sex": sex.tolist(),
        "village": village.tolist(),
        "area": (village // 10).tolist(),
    }


def main() -> None:
    import svy

    drawn = draw_sample()
    table = pl.DataFrame(drawn)
    designs = {
        "weights": svy.Design(wgt="w"),
        "villages": svy.Design(wgt="w", psu="village"),
        "areas": svy.Design(wgt="w", stratum="area"),
        "villages in areas": svy.Design(wgt="w", psu="village", stratum="area"),
    }
    found = {}
    for name, design in designs.items():
        for where in ("", "sex == 'f'"):
            model = svy.Sample(table, design).glm.fit(
                "y", x=["x"], family="gaussian", where=svy.col("sex") == "f" if where else None
            )
            terms = {one.term: (one.est, one.se) for one in model.fitted.coefs}
            found[f"{name}; {where}"] = terms
    RESULT.write_text(json.dumps({"svy": svy.__version__, "rows": drawn, "fits": found}), encoding="utf-8")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
