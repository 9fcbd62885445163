"""Private ranges on a real survey: error of the income slope under ever more generous bounds.

    python benchmarks/survey.py --data shiw2012.csv [--repetitions 100]

Takes the Bank of Italy's Survey on Household Income and Wealth, wave 2012, as a CSV file with the columns
`income` and `consumption` (8,151 households; the file is not part of this project). 5,000 households are drawn,
put into nine blocks with the accuracies of [LPK24]'s application, mislinked, and fitted with M = 1, ε = 1,
δ = 8.5e-5. The error is against the same estimating equation without noise and wrong links.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.csv
from rich.progress import track

import dplinked as dpl
from dplinked.simulate import mislink

SIZES = (50, 72, 1686, 32, 939, 384, 128, 1238, 471)
ACCURACY = np.array([0.880, 0.903, 0.918, 0.938, 0.905, 0.875, 0.898, 0.917, 0.898])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=100)
    arguments = parser.parse_args()
    table = pyarrow.csv.read_csv(arguments.data)
    incomes, spending = (table[name].to_numpy() for name in ("income", "consumption"))
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.arange(9), SIZES)
    print("| bounds of income / consumption | ranges | mean error | mean slope | 95 % intervals hold it |")
    print("|---|---|---:|---:|---:|")
    for high_x, high_y in ((120e3, 90e3), (250e3, 200e3), (500e3, 300e3)):
        for ranges in ("declared", "private"):
            errors, slopes, hits = [], [], []
            for _ in track(range(arguments.repetitions), f"{high_x:g} {ranges}", transient=True):
                drawn = rng.choice(incomes.size, 5000, replace=False)
                x, y = np.clip(incomes[drawn], 0, high_x), np.clip(spending[drawn], 0, high_y)
                if ranges == "private":
                    low, high = np.quantile(x, [0.15, 0.85])
                    h = np.clip((x - (low + high) / 2) / ((high - low) / 2), -1, 1)
                else:
                    h = x
                reference = float(np.cov(h, y)[0, 1] / np.cov(h, x)[0, 1])
                release = dpl.fit(
                    {"income": x, "consumption": y[mislink(blocks, ACCURACY, rng)], "block": blocks},
                    "consumption ~ income",
                    bounds={"income": (0, high_x), "consumption": (0, high_y)},
                    linkage=dpl.ELE(dict(enumerate(ACCURACY)), block="block"),
                    unit=dpl.PrivacyUnit(linkage_change=1.0),
                    epsilon=1.0,
                    delta=8.5e-5,
                    ranges=ranges,
                )
                errors.append(abs(release.coef["income"] - reference))
                slopes.append(release.coef["income"])
                low, high = release.conf_int()["income"]
                hits.append(low <= reference <= high)
            print(
                f"| {high_x / 1e3:g}k / {high_y / 1e3:g}k | {ranges} | {np.mean(errors):.3f} | {np.mean(slopes):.3f} "
                f"| {np.mean(hits):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
