"""Spark: the same links as DuckDB gives, on a real local session. Needs Java; skipped with a reason where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dplinked as dpl
import sparks
from dplinked.simulate import two_files

pytestmark = sparks.MARKS


def test_splink_on_spark_links_like_splink_on_duckdb(session: Any) -> None:
    files = two_files(300, 2)
    fields = ["given_name", "surname", "date_of_birth", "national_id"]
    found = [
        dpl.link(files.left, files.right, fields=fields, id="id", method="splink", engine=engine)
        for engine in (session, "duckdb")
    ]
    accuracies = [float((linked.links.right == files.truth).mean()) for linked in found]
    assert min(accuracies) > 0.95
    # chance agreement is estimated from different random pairs, so single weak links may differ
    assert (found[0].links.right == found[1].links.right).mean() > 0.98
    assert found[0].estimates[0].overall[0] == pytest.approx(accuracies[0], abs=0.01)
    assert np.isfinite(found[0].links.candidates.evidence).all()
