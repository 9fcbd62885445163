"""What the second stage expects of residuals and groups, against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dplinked.estimate.groups import Groups, choose_weights
from dplinked.estimate.residuals import (
    choose_clip,
    choose_width,
    clipped_square,
    closest_clip,
    expect_residuals,
    most_changed,
    right_deviation,
    slope_kept,
    wider_width,
)
from dplinked.sums.partners import clip_residuals

DRAWS = np.random.default_rng(0).normal(size=200_000)


@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0])
def test_no_line_changes_residuals_further(alike: float) -> None:
    """Whatever columns have in common and wherever their means are; if they are the same column, and slopes go one way, residuals change by as much as that."""
    rng = np.random.default_rng(int(10 * alike))
    for _ in range(50):
        common, way = rng.normal(rng.normal(), 1.0, (1, 400)), rng.normal(size=4)
        x = alike * common + (1.0 - alike) * rng.normal(rng.normal(), 1.0, (3, 400))
        sizes = np.sqrt((x**2).mean(axis=1))
        changed = np.sqrt(((way[0] + way[1:] @ x) ** 2).mean())
        assert changed <= most_changed(way, sizes) * (1 + 1e-12)
        if alike == 1.0:
            same = np.abs(np.r_[0.0, way[1:]])
            assert np.sqrt(((same[1:] @ x) ** 2).mean()) == pytest.approx(most_changed(same, sizes))


@pytest.mark.parametrize("clip", [1.0, 2.0, 4.0])
def test_slope_and_square_of_clipped_residuals_are_those_of_normal_ones(clip: float) -> None:
    widths = np.full(DRAWS.size, clip)
    step = 0.05
    slope = (clip_residuals(DRAWS + step, widths) - clip_residuals(DRAWS - step, widths)).mean() / (2 * step)
    assert slope == pytest.approx(float(slope_kept(np.array(clip))), rel=0.02)
    assert clipped_square(3.0 * clip, 3.0) == pytest.approx(9.0 * (clip_residuals(DRAWS, widths) ** 2).mean(), rel=0.02)


@pytest.mark.parametrize(("accuracy", "explained"), [(1.0, 3.0), (0.9, 5.0), (0.6, 5.0), (0.6, 0.1)])
def test_the_deviation_of_right_links_is_found_among_wrong_ones(accuracy: float, explained: float) -> None:
    right = np.arange(DRAWS.size) < accuracy * DRAWS.size
    residuals = np.abs(np.where(right, 0.7 * DRAWS, np.sqrt(0.49 + 2 * explained) * DRAWS))
    level = 0.95 * accuracy + 0.3 * (1 - accuracy)
    found = right_deviation(float(np.quantile(residuals, level)), level, accuracy, explained)
    assert found == pytest.approx(0.7, rel=0.02)


def test_released_values_however_odd_give_a_deviation() -> None:
    for size in (1e-30, 1.0, 2.0):
        for level in (0.3, 0.9999):
            for explained in (-1.0, 0.0, 1e30):
                assert 0.0 < right_deviation(size, level, 0.5, explained) < np.inf


def test_clips_widen_with_the_number_of_rows_and_close_where_noise_drowns_the_rest() -> None:
    clips = [choose_clip(noise, errors="any") for noise in (3.0, 1.0, 0.3, 0.1, 0.04, 0.01)]
    assert clips == sorted(clips)
    assert clips[0] == pytest.approx(2.0)
    assert 2.1 < clips[1] < clips[2]
    assert clips[3:] == pytest.approx([10.0, 25.0, 100.0])
    assert choose_width(30.0, 1e4) == 2.5
    assert choose_width(1e-3, 1e4) > 1e3
    assert [wider_width(width) for width in (2.5, 3.0, 6.0, 30.0)] == [2.5, 3.0, 12.0, 75.0]


def slope_error(clip: float, noise: float) -> float:
    """Of normal residuals, whose sampling error is 1 without clipping."""
    return math.sqrt(clipped_square(clip, 1.0) + (noise * clip) ** 2) / float(slope_kept(np.array(clip)))


def test_skewed_residuals_are_clipped_far_out_whatever_the_noise() -> None:
    for noise in (3.0, 1.0, 0.3):
        assert choose_clip(noise, errors="skewed") == 10.0 > 2.0 * choose_clip(noise, errors="any")
    assert choose_clip(0.01, errors="skewed") == choose_clip(0.01, errors="any") == pytest.approx(100.0)


def test_residuals_that_are_alike_on_both_sides_are_clipped_closer_but_never_below_four_deviations() -> None:
    for noise, clip in ((0.2, 4.0), (0.1, 4.0), (0.04, 6.25), (0.01, 25.0)):
        assert choose_clip(noise, errors="alike") == pytest.approx(clip)
        assert choose_clip(noise, errors="any") > 1.2 * clip
    for noise in (3.0, 1.0, 0.3):
        assert choose_clip(noise, errors="alike") == choose_clip(noise, errors="any")
    assert choose_clip(0.1, errors="alike", closest=7.0) == 7.0


def test_symmetric_residuals_are_clipped_where_the_error_is_smallest() -> None:
    for noise, most in ((3.0, 1.0), (0.3, 2.0), (0.03, 4.5), (1e-6, 8.0)):
        clip = choose_clip(noise, errors="symmetric")
        assert 1.0 <= clip <= most + 1e-9
        others = [choose_clip(noise, errors="any"), *np.linspace(1.0, 9.0, 41)]
        assert slope_error(clip, noise) <= 1.002 * min(slope_error(other, noise) for other in others)
    assert slope_error(choose_clip(0.3, errors="symmetric"), 0.3) < 0.9 * slope_error(
        choose_clip(0.3, errors="any"), 0.3
    )


def test_clips_leave_room_for_the_way_that_is_left_to_go() -> None:
    """Slopes that are off by deviations along a column get the clip of any errors."""
    sizes = np.array([0.5, 0.2])
    near, off, far = (closest_clip(0.1, error**2 * np.diag(sizes**2)) for error in (0.01, 0.05, 1.0))
    assert near == 1.0
    assert off == pytest.approx(7.0 * 0.05 * 0.5 / 0.1)
    assert choose_clip(1.0, "symmetric", near) < choose_clip(1.0, "symmetric", off) == off
    assert choose_clip(1.0, "symmetric", far) == choose_clip(1.0, "any")


def test_no_row_contributes_more_than_the_limit() -> None:
    found = expect_residuals(0.1, 1.0, np.array([0.3, 0.5]), True, 20.0, 1e4, 4.0, errors="any")
    assert found.limit == pytest.approx(found.clip * 0.1 * found.norm)
    assert all(0.9 < kept < 1.1 for kept in found.kept)
    assert found.wrong < found.kept[2]
    assert 0.0 < found.wrong_share(0.9) < found.wrong_share(0.6) < 1.0


def error(groups: Groups, weights: np.ndarray, noise: float) -> float:
    variance = groups.accuracies + 8 * (1 - groups.accuracies)
    signal = (weights * groups.contrasts * groups.sizes).sum()
    return ((weights**2 * variance * groups.sizes).sum() + noise**2) / signal**2


@pytest.mark.parametrize("noise", [0.0, 30.0, 1e4])
def test_a_bad_group_never_makes_the_expected_error_larger(noise: float) -> None:
    """Its weight falls with its accuracy, and rises with the noise."""
    sizes = np.array([10_000.0, 40_000.0])
    for accuracy in (0.001, 0.1, 0.5, 0.89):
        both = Groups(("a", "b"), sizes, np.array([0.9, accuracy]), np.ones(2))
        weights = choose_weights(both, noise)
        assert weights.max() == 1.0
        alone = error(both, np.array([1.0, 1e-9]), noise)
        assert error(both, weights, noise) <= 1.01 * min(alone, error(both, np.ones(2), noise))
    lighter = Groups(("a", "b"), sizes, np.array([0.9, 0.3]), np.ones(2))
    assert choose_weights(lighter, 0.0)[1] < choose_weights(lighter, 1e5)[1] == 1.0
