"""Writes the files beside it with dplinked 0.1.0 (commit a319e66): one release of each path, and what it answers.

Run it with that version on PYTHONPATH, in this folder. The noise cannot be seeded, so a second run writes other figures.
"""

from __future__ import annotations

import csv
import json
import socket
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

import dplinked as dpl
from dplinked.simulate import linked_households, review_links, two_files

ELE = dpl.ELE(accuracy=0.91, block="state", checked=1000, source="public")
FORMULA, SLOPE = "consumption ~ income + C(region)", "consumption ~ income"
MODEL = {
    "bounds": {"consumption": (0, 120_000), "income": (0, 150_000)},
    "levels": {"region": ["north", "south"]},
    "typical": {"income": (15_000, 50_000)},
    "epsilon": 2.0,
    "delta": 1e-6,
    "linkage": ELE,
}
STUDY = """\
[data]
path = "rows.csv"

[model]
formula = "consumption ~ income"

[bounds]
income = [0, 150000]
consumption = [0, 120000]

[linkage]
block = "state"
accuracy = 0.9

[privacy]
epsilon = 1.0
delta = 1e-6

[ledger]
url = "budget.db"
population = "people"
"""


def paths() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """Data, formula and settings of each release."""
    table = pa.table(dict(linked_households(60_000, seed=3)))
    rows, few, n = table.slice(0, 20_000), table.slice(0, 800), 2_000
    cells = table.append_column("cell", pa.array(np.arange(table.num_rows) // 4))
    Q = sp.diags([0.9 * np.ones(n), 0.1 * np.ones(n - 1), [0.1]], [0, 1, 1 - n]).tocsr()
    wide = {key: value for key, value in MODEL.items() if key != "typical"}
    estimated = dpl.ELE(accuracy=0.91, block="state", source="estimated", accuracy_min=0.8)
    descent = dpl.Descent(radius=1e4, step=1e-10, iterations=20)
    return {
        "ssp": (rows, FORMULA, MODEL),
        "ssp_symmetric": (rows, FORMULA, wide),
        "ssp_no_intercept": (rows, "consumption ~ 0 + income", MODEL),
        "ssp_exact": (rows, FORMULA, {**MODEL, "linkage": dpl.Exact()}),
        "ssp_private_ranges": (rows, FORMULA, {**MODEL, "ranges": "private"}),
        "ssp_no_intervals": (rows, FORMULA, {**MODEL, "intervals": False}),
        "ssp_moves": (rows, FORMULA, {**MODEL, "unit": dpl.PrivacyUnit(moves_block=True, displaced_links=2)}),
        "ssp_estimated": (
            rows, FORMULA, {**MODEL, "linkage": estimated, "unit": dpl.PrivacyUnit(linkage_change=50.0)},
        ),
        "ssp_ridge": (rows, FORMULA, {**MODEL, "ridge": 100.0}),
        "ssp_block_meat": (
            cells, FORMULA, {**MODEL, "linkage": dpl.ELE(0.91, block="cell", checked=1000, source="public"), "epsilon": 3.0},
        ),
        "ssp_scale_alone": (few, FORMULA, {**MODEL, "linkage": dpl.ELE(0.91, block="state"), "epsilon": 0.5}),
        "ssp_matching": (
            table.slice(0, n), SLOPE,
            {**MODEL, "linkage": dpl.Matching(Q), "unit": dpl.PrivacyUnit(linkage_change=1.0, displaced_links=0), "epsilon": 5.0},
        ),
        "ngd": (rows, FORMULA, {**MODEL, "method": "ngd"}),
        "ngd_no_intervals": (rows, FORMULA, {**MODEL, "method": "ngd", "intervals": False}),
        "paper_ssp": (rows, FORMULA, {**MODEL, "calibration": "paper", "epsilon": 1.0}),
        "paper_ngd": (rows, SLOPE, {**MODEL, "calibration": "paper", "method": "ngd", "epsilon": 1.0, "descent": descent}),
    }  # fmt: skip


def with_released_accuracy() -> dpl.Release:
    """A fit on accuracies that were paid for; they are saved as well."""
    files, unit = two_files(2000, 5, errors=1.5), dpl.PrivacyUnit()
    linked = dpl.link(
        files.left, files.right, fields=["given_name", "surname", "date_of_birth"], id="id", block="state"
    )
    linked = linked.audited(review_links(linked.audit_sample(300), files))
    paid = dpl.release_accuracy(linked, epsilon=1.0, delta=1e-6, unit=unit)
    paid.save("accuracy.json")
    settings = {**MODEL, "linkage": paid.linkage, "unit": unit, "epsilon": 3.0, "levels": {}}
    return dpl.fit(linked.rows, SLOPE, **settings)


def with_ledger() -> dpl.Release:
    """A study, its data, and the ledger that stores its release."""
    rng = np.random.default_rng(0)
    with open("rows.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["consumption", "income", "state"])
        for i in range(400):
            income = round(float(rng.uniform(0, 100_000)), 2)
            writer.writerow([round(5000 + 0.5 * income, 2), income, "ab"[i % 2]])
    with open("study.toml", "w") as file:
        file.write(STUDY)
    study = dpl.Study.from_toml("study.toml")
    dpl.Ledger.create("budget.db", "people", epsilon=3.0, delta=1e-6).register(study.data)
    return dpl.fit_study(study, study.data, release_id="first")


def answers(release: dpl.Release) -> dict[str, Any]:
    """What a release answers, as JSON has it."""

    def finite(values: Any) -> list[float | None]:
        return [value if np.isfinite(value) else None for value in values]

    found: dict[str, Any] = {
        "summary": release.summary(), "markdown": release.to_markdown(), "csv": release.to_csv(), "latex": release.to_latex(),
    }  # fmt: skip
    if not release.has_intervals:
        return found
    for method in ("test", "wald"):
        found[method] = {name: finite(ends) for name, ends in release.conf_int(0.9, method=method).items()}
    result = release.test("income = 0.5")
    found["hypothesis"] = [result.statistic, result.p_value]
    if release.formula == FORMULA:
        small = release.submodel(SLOPE)
        found["submodel"] = [small.coef, small.std_err]
        found["ridge"] = release.ridge(0.01)
        new = {"income": [30_000.0, 60_000.0], "region": ["north", "south"]}
        found["predict"] = [finite(one) for one in release.predict(new)]
    if release.linkage.get("accuracy") is not None and "Intercept" in release.coef:
        found["with_accuracy"] = release.with_accuracy(-0.02).coef
    return found


def main() -> None:
    """Write all files."""
    assert dpl.__version__ == "0.1.0"
    socket.gethostname = lambda: "example"
    made = {name: dpl.fit(data, formula, **settings) for name, (data, formula, settings) in paths().items()}
    made |= {"ssp_released_accuracy": with_released_accuracy(), "ssp_ledger": with_ledger()}
    for name, release in made.items():
        release.save(f"{name}.json")
        with open(f"{name}.answers.json", "w", encoding="utf-8") as file:
            json.dump(answers(release), file, indent=1, ensure_ascii=False)
            file.write("\n")


if __name__ == "__main__":
    main()
