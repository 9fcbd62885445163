"""Several records of one person in a file, and several rows that share a record.

A section of benchmarks/linking.py. Seeds were used for nothing else.
"""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console

import dplinked as dpl
from dplinked.linker.quality import DOUBT
from dplinked.simulate import two_files
from held_out import FIVE, over_threshold
from sections import Report


def measure_repeated(quick: bool, console: Console) -> Report:
    """What dpl.dedupe finds, and links where several rows belong to one record."""
    report = Report()
    console.print("Records of one person in a file …")
    _within_one_file(report, 500 if quick else 2_000)
    console.print("Rows that share a record …")
    _households(report, 300 if quick else 1_500)
    return report


def _within_one_file(report: Report, rows: int) -> None:
    """dpl.dedupe on the right file, which holds further records of some people."""
    table = []
    for seed, errors, duplicates, fields in (
        (321, 1.0, 0.2, FIVE), (322, 1.0, 0.05, FIVE), (323, 1.0, 0.0, FIVE), (324, 2.5, 0.2, FIVE), (325, 2.5, 0.0, FIVE),
        (326, 1.0, 0.2, FIVE[:3]), (327, 2.5, 0.2, FIVE[:3]), (328, 1.0, 0.0, FIVE[:3]),
    ):  # fmt: skip
        files = two_files(rows, seed, errors=errors, duplicates=duplicates)
        person = np.arange(files.right.num_rows) if files.owner is None else files.owner
        start = time.process_time()
        found = dpl.dedupe(files.right, fields=fields, id="id")
        seconds = time.process_time() - start
        pairs, true = found.duplicates, round(duplicates * rows)
        joined = pairs.probability >= found.least
        right = int((person[pairs.first[joined]] == person[pairs.second[joined]]).sum())
        precision = f"{right / joined.sum():.3f}" if joined.any() else "-"
        recall = f"{right / true:.3f}" if true else "-"
        table.append(
            [
                f"{errors:g}",
                f"{duplicates:g}",
                len(fields),
                true,
                int(joined.sum()),
                precision,
                recall,
                f"{seconds:.1f}",
            ]
        )
        report.require(true > 0 or joined.sum() <= 2, f"{joined.sum()} pairs joined in a file without duplicates")
    report.add(
        f"`dpl.dedupe` on right files of {rows:,} people, some with a second record, seeds 321 to 328: pairs of records that it joined, how many of these are one person's, and how many of those there are it found."
    )
    report.table(["errors ×", "duplicates", "fields", "pairs there", "joined", "precision", "recall", "CPU s"], table)


def _households(report: Report, homes: int) -> None:
    """Members of households, linked to the household's record by name and address."""
    table, fields = [], ["surname", "address", "postcode", "suburb"]
    for seed, errors, most in ((331, 1.0, 3), (332, 2.0, 3), (333, 3.0, 3), (334, 1.0, 2), (335, 2.0, 6)):
        files, rng = two_files(homes, seed, errors=errors), np.random.default_rng(seed)
        member = np.repeat(np.arange(homes), rng.integers(1, most + 1, homes))
        left, truth = files.left.take(member).drop_columns("id"), files.truth[member]
        for name, how in (("one-to-one", {}), ("many-to-one", {"links": "many-to-one", "carriers": most})):
            linked = dpl.link(left, files.right, fields=fields, block="state", **how)
            right = linked.links.right == truth
            told = linked.estimates[0]
            over = over_threshold(linked.links)
            table.append(
                [f"{errors:g}", f"1 to {most}", name, f"{right.mean():.4f}", f"{right[over].mean():.4f}", f"{told.overall[0] - right.mean():+.4f}", "yes" if told.doubtful else "no"]
            )  # fmt: skip
            off = told.overall[0] - right.mean()
            report.require(
                abs(off) <= DOUBT or told.doubtful,
                f"households, errors × {errors:g}, {name}: the estimate is off by {off:+.4f} and not called doubtful",
            )
    report.add(
        f"Members of {homes:,} households, linked to the record of their household by surname, address, postcode and suburb, seeds 331 to 335. At errors × 1 one household in ten has moved since, so that "
        "three of four fields differ. The estimate takes fields to differ independently, which they do not here. One to one, a household's record goes to one of its members."
    )
    report.table(["errors ×", "members", "links", "right", "right over the threshold", "estimate", "doubtful"], table)
