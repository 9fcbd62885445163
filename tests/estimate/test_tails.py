"""How tails are looked for, and what is made of what is seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dplinked as dpl
from dplinked.estimate.tails import choose_norm, far_columns, known_excess, widen_clip
from dplinked.study.study import Study


def test_clips_stay_where_squares_are_as_expected_and_widen_where_they_are_not() -> None:
    assert widen_clip(np.array([1.0, 0.7]), 0.15, 1.0) == 1.0
    wider = [widen_clip(np.array([squares]), 0.15, 1.0) for squares in (1.2, 1.5, 1.6, 4.0)]
    assert wider == sorted(wider)
    assert wider[0] == 1.0 < wider[1] < wider[-1] == 8.0


def test_the_more_noise_there_is_the_less_is_added() -> None:
    assert widen_clip(np.array([5.0]), 0.1, 0.5) == 8.0
    assert widen_clip(np.array([5.0]), 0.1, 2.0) == 2.0
    assert widen_clip(np.array([5.0]), 0.1, 4.0) == 1.0


def test_of_many_columns_one_may_seem_to_have_a_tail_by_chance() -> None:
    draws = 1.0 + 0.2 * np.random.default_rng(0).normal(size=(400, 20))
    assert np.mean([widen_clip(squares, 0.2, 1.0) > 1.0 for squares in draws]) < 0.02


def test_the_norm_grows_with_what_noise_allows() -> None:
    norms = [choose_norm(2, lambda norm, unit=unit: unit * norm**2, math.inf) for unit in (1e-2, 1e-3, 1e-4)]
    assert norms[0] == pytest.approx(4.0 * 2**0.5)
    assert norms[0] < norms[1] < norms[2]
    assert 1e-3 * norms[1] ** 2 <= 0.2
    assert choose_norm(2, lambda norm: 1.0, math.inf) is None
    far = choose_norm(2, lambda norm: 1e-3 * min(norm, 8.0) ** 2, 8.0)  # noise that grows no more where nothing is cut
    assert far is not None
    assert 8.0 <= far <= 8.8


def test_rows_of_which_more_is_known_have_less_to_tell() -> None:
    assert known_excess(0.0, 0.0) == 0.0 < known_excess(0.01, 0.0) < known_excess(0.01, 0.1)


def test_columns_that_reach_far_are_numeric_ones_far_beyond_their_size() -> None:
    study = Study(
        formula="y ~ x + C(g)",
        bounds={"x": (0.0, 100.0), "y": (0.0, 1.0)},
        levels={"g": ("a", "b")},
        typical={"x": (1.0, 3.0)},
        linkage=dpl.Exact(),
        epsilon=1.0,
        delta=1e-6,
    )
    design = study.prepare()[0]
    assert far_columns(design, np.array([0.02, 0.02])).tolist() == [True, False]
    assert far_columns(design, np.array([1.0, 0.02])).tolist() == [False, False]
