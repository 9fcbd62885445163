"""What a study is told by name and by position."""

from __future__ import annotations

import inspect

import pytest

import dplinked as dpl

NAMED = {
    "formula": "y ~ x",
    "bounds": {"y": (0, 1), "x": (0, 1)},
    "epsilon": 1.0,
    "delta": 1e-6,
    "linkage": dpl.Exact(),
}


def test_positions_still_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match="by position goes in"):
        study = dpl.Study(*NAMED.values())
    assert study == dpl.Study(**NAMED)
    assert list(inspect.signature(dpl.Study).parameters)[:5] == list(NAMED)


def test_fit_passes_every_setting_on() -> None:
    """`fit` takes all that a study takes, but for where its rows are, and with the same defaults or none."""
    study, fit = (inspect.signature(one).parameters for one in (dpl.Study, dpl.fit))
    assert set(fit) - {"data", "release_id"} == set(study) - {"data"}
