"""Private linear regression by others, written from their papers, on the same terms: neighbours replace one row, n is public.

Rows lie in the cube [-1, 1]^d, so that ‖(1, x)‖ ≤ √p with p columns, and responses within ±R. Every `draw_…` returns the slopes of many
releases (draws×d). Where a paper counts a row added or removed, its sensitivities are those of a replaced one here.

- AdaSSP: Wang (2018), "Revisiting differentially private linear regression", Algorithm 2.
- BoostedAdaSSP: Tang and others (2023), "Improved differentially private regression via gradient boosting", Algorithm 1.
- TukeyEM: Amin, Joseph, Ribero and Vassilvitskii (2022), "Easy differentially private linear regression".
- DP-GD: gradient descent on all rows, whose gradients are clipped row by row, averaged over its last half.
- Theil-Sen: Alabi and others (2020), "Differentially private simple linear regression": matched pairs, widened exponential mechanism.
- BinAgg: Lin, Slavković and Bhoomireddy (2025), "Differentially private linear regression and synthetic data generation with statistical guarantees".
- IHM: Lev and others (2026), "Near-optimal private linear regression via iterative Hessian mixing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from dplinked.privacy.calibration import privacy_mu

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """One data set in the cube: X (n×d) and y (n) with public bounds, and what the slopes are compared with."""

    X: Floats
    y: Floats
    response_bound: float
    target: Floats
    intercept: bool


def with_constant(data: DataSet) -> Floats:
    """X with the constant column, where there is an intercept."""
    return np.column_stack([np.ones(len(data.y)), data.X]) if data.intercept else data.X


def slopes_error(data: DataSet, slopes: Floats) -> Floats:
    """Relative l2 error of slopes (draws × d)."""
    return np.asarray(np.linalg.norm(slopes - data.target, axis=-1) / np.linalg.norm(data.target))


def least_squares(data: DataSet) -> Floats:
    """The slopes of least squares, which have no privacy (1×d)."""
    return np.linalg.lstsq(with_constant(data), data.y, rcond=None)[0][None, int(data.intercept) :]


# --- AdaSSP and its boosted kind -----------------------------------------------------------------------


def draw_ridged_gram(X: Floats, unit: float, margin: float, draws: int, rng: np.random.Generator) -> Floats:
    """Noisy X'X with AdaSSP's ridge (draws×p×p); sensitivities √2c² and, of the least eigenvalue, c²; `unit` is noise per sensitivity."""
    p = X.shape[1]
    G, square = X.T @ X, float(p)
    scale = unit * math.sqrt(2.0) * square
    least = np.linalg.eigvalsh(G)[0] + unit * square * rng.standard_normal(draws) - margin * square
    ridge = np.maximum(0.0, math.sqrt(p * math.log(2.0 * p * p / 0.05)) * scale - np.maximum(0.0, least))
    noise = np.triu(rng.standard_normal((draws, p, p)))
    noise += np.triu(noise, 1).transpose(0, 2, 1)
    return np.asarray(G + scale * noise + ridge[:, None, None] * np.eye(p))


def draw_adassp(
    data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator, *, gdp: bool = False
) -> Floats:
    """AdaSSP: as published each third of the budget goes through √log(6/δ)/(ε/3); with `gdp` it is a Gaussian release of μ/√3."""
    X = with_constant(data)
    p = X.shape[1]
    if gdp:
        unit = math.sqrt(3.0) / privacy_mu(epsilon, delta)
        margin = 1.65 * unit
    else:
        unit = 3.0 * math.sqrt(math.log(6.0 / delta)) / epsilon
        margin = 3.0 * math.log(6.0 / delta) / epsilon
    left = draw_ridged_gram(X, unit, margin, draws, rng)
    right = X.T @ data.y + unit * 2.0 * data.response_bound * math.sqrt(p) * rng.standard_normal((draws, p))
    return np.asarray(np.linalg.solve(left, right[..., None])[..., 0][:, int(data.intercept) :])


def draw_boosted(
    data: DataSet,
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
    *,
    rounds: int = 100,
    clip: float = 1.0,
) -> Floats:
    """BoostedAdaSSP: one noisy Gram matrix, then rounds on residuals clipped to `clip`·R."""
    X, edge = with_constant(data), clip * data.response_bound
    p, unit = X.shape[1], math.sqrt(3.0) / privacy_mu(epsilon, delta)
    inverse = np.linalg.inv(draw_ridged_gram(X, unit, 1.65 * unit, draws, rng))
    scale = unit * math.sqrt(rounds) * 2.0 * edge * math.sqrt(p)
    theta = np.zeros((draws, p))
    for _ in range(rounds):
        residuals = np.clip(data.y[:, None] - X @ theta.T, -edge, edge)
        right = (X.T @ residuals).T + scale * rng.standard_normal((draws, p))
        theta += np.einsum("dij,dj->di", inverse, right)
    return theta[:, int(data.intercept) :]


# --- TukeyEM -------------------------------------------------------------------------------------------


def draw_tukey(
    data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator, *, parts: int = 1000
) -> Floats:
    """TukeyEM: a deep point among least-squares fits of disjoint parts; zero where its test finds the fits too far apart.

    Replacing a row moves a depth by one in either direction, so the exponential mechanism weighs it by ε/2 (half of the budget pays for the
    test).
    """
    X, first = with_constant(data), int(data.intercept)
    return np.stack([_deep_point(_part_fits(X, data.y, parts, rng), epsilon, delta, rng)[first:] for _ in range(draws)])


def tukey_runs(data: DataSet, parts: int) -> bool:
    """Whether each part has enough rows for a fit of its own."""
    return len(data.y) // parts >= data.X.shape[1] + int(data.intercept)


def _part_fits(X: Floats, y: Floats, parts: int, rng: np.random.Generator) -> Floats:
    """Least-squares fits of equal parts of the rows in random order (parts×p)."""
    size = len(y) // parts
    order = rng.permutation(len(y))[: size * parts].reshape(parts, size)
    inside, right = X[order], y[order]
    gram = np.einsum("mni,mnj->mij", inside, inside)
    cross = np.einsum("mni,mn->mi", inside, right)
    fits = np.einsum("mij,mj->mi", np.linalg.pinv(gram, hermitian=True), cross)
    return np.asarray(fits + 1e-10 * rng.random(fits.shape))


def _deep_point(fits: Floats, epsilon: float, delta: float, rng: np.random.Generator) -> Floats:
    """The test and, where it passes, a point drawn by its approximate Tukey depth (p): the smallest depth over coordinates."""
    count, p = fits.shape
    ordered, half = np.sort(fits, axis=0), epsilon / 2.0
    deepest = count // 2
    lengths = ordered[::-1][:deepest] - ordered[:deepest]  # of the box of depth k + 1 in each coordinate
    volumes = np.log(lengths).sum(axis=1)
    least = count // 4
    distance = _safe_distance(volumes, least, half, delta)
    if distance + rng.laplace(scale=1.0 / half) < math.log(1.0 / (2.0 * delta)) / half:
        return np.zeros(p)
    boxes = np.append(volumes[least - 1 :], -np.inf)
    shells = boxes[:-1] + np.log1p(-np.exp(np.diff(boxes))) + half / 2.0 * np.arange(boxes.size - 1)
    return _point_of_depth(ordered, lengths, least - 1 + int(np.argmax(shells + rng.gumbel(size=shells.size))), rng)


def _safe_distance(volumes: Floats, least: int, epsilon: float, delta: float) -> int:
    """How many fits may change before the restricted mechanism is not safe, at least: `volumes[k]` is the log volume of depth k + 1."""
    threshold = math.log(delta / 8.0) - epsilon
    safe = -1
    for k in range(least - 1):
        further = volumes[least + k + 1 :]
        if not further.size:
            break
        ratios = volumes[least - k - 2] - further - epsilon / 2.0 * np.arange(1, further.size + 1)
        if ratios.min() > threshold:
            break
        safe = k
    return safe


def _point_of_depth(ordered: Floats, lengths: Floats, depth: int, rng: np.random.Generator) -> Floats:
    """A uniform point of box number `depth` outside the next deeper one (p); the first coordinate outside is drawn by its share of the volume."""
    count, p = ordered.shape
    low, high, outer = ordered[depth], ordered[count - 1 - depth], lengths[depth]
    if depth + 1 >= len(lengths):
        return np.asarray(rng.uniform(low, high))
    inside_low, inside_high, inner = ordered[depth + 1], ordered[count - 2 - depth], lengths[depth + 1]
    logs_inner, logs_outer = np.log(inner), np.log(outer)
    before = np.concatenate([[0.0], np.cumsum(logs_inner)[:-1]])
    after = np.concatenate([np.cumsum(logs_outer[::-1])[::-1][1:], [0.0]])
    shares = np.log(outer - inner) + before + after
    j = int(np.argmax(shares + rng.gumbel(size=p)))
    point = np.where(np.arange(p) < j, rng.uniform(inside_low, inside_high), rng.uniform(low, high))
    place = rng.uniform(0.0, outer[j] - inner[j])
    left = inside_low[j] - low[j]
    point[j] = low[j] + place if place < left else inside_high[j] + (place - left)
    return np.asarray(point)


# --- gradient descent ----------------------------------------------------------------------------------


def draw_descent(
    data: DataSet,
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
    *,
    steps: int,
    clip: float,
    rate: float,
    scaled: bool = False,
) -> Floats:
    """DP-GD: gradients clipped to `clip`·R·√p, steps of `rate` over the largest curvature, which only an oracle knows.

    `scaled` has the columns centred and scaled by their own means and deviations, which only an oracle knows either.
    """
    middle, spread = (data.X.mean(axis=0), data.X.std(axis=0)) if scaled else (0.0, np.ones(data.X.shape[1]))
    X = with_constant(replace(data, X=(data.X - middle) / spread))
    n, p = X.shape
    reach = clip * data.response_bound * math.sqrt(p) / np.linalg.norm(X, axis=1)[:, None]
    step = rate / (np.linalg.eigvalsh(X.T @ X)[-1] / n)
    scale = 2.0 * clip * data.response_bound * math.sqrt(p * steps) / privacy_mu(epsilon, delta) / n
    theta, late = np.zeros((draws, p)), np.zeros((draws, p))
    for k in range(steps):
        clipped = np.clip(X @ theta.T - data.y[:, None], -reach, reach)
        theta = theta - step * ((X.T @ clipped).T / n + scale * rng.standard_normal((draws, p)))
        if k >= steps // 2:
            late += theta / (steps - steps // 2)
    return late[:, int(data.intercept) :] / spread


# --- Theil-Sen -----------------------------------------------------------------------------------------


def draw_theil_sen(
    data: DataSet,
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
    *,
    matchings: int = 10,
    widened: float = 0.0,
) -> Floats:
    """Theil-Sen of one column: medians of the lines of matched pairs at x = ±½, by the exponential mechanism, which may be widened; pure ε."""
    x, R = data.X[:, 0], data.response_bound
    found = np.empty((draws, 1))
    for i in range(draws):
        pairs = np.concatenate([rng.permutation(len(x))[: len(x) // 2 * 2].reshape(-1, 2) for _ in range(matchings)])
        left, right = pairs.T
        run = x[right] - x[left]
        slope = np.divide(
            data.y[right] - data.y[left], run, out=np.zeros(len(run)), where=run != 0.0
        )  # level where x ties
        middle = (data.y[right] + data.y[left]) / 2.0 - slope * (x[right] + x[left]) / 2.0
        low, high = (
            _private_median(middle + slope * at, 2.0 * R, epsilon / 2.0 / matchings, widened * 2.0 * R, rng)
            for at in (-0.5, 0.5)
        )
        found[i] = high - low
    return found


def _private_median(values: Floats, reach: float, epsilon: float, widened: float, rng: np.random.Generator) -> float:
    """A median within ±reach; scores are ranks, and a value scores as the best within `widened` of it."""
    ordered, half = np.sort(values), len(values) // 2
    ordered = ordered + np.where(np.arange(len(values)) < half, -widened, widened)
    edges = np.concatenate([[-reach], np.clip(ordered, -reach, reach), [reach]])
    lengths = np.diff(edges)
    with np.errstate(divide="ignore"):
        scores = np.log(lengths) - epsilon / 2.0 * np.abs(np.arange(len(lengths)) - len(values) / 2.0)
    k = int(np.argmax(scores + rng.gumbel(size=scores.size)))
    return float(rng.uniform(edges[k], edges[k + 1]))


# --- BinAgg --------------------------------------------------------------------------------------------


def draw_binagg(data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator) -> Floats:
    """BinAgg: bins by PrivTree, noisy counts and sums of bins, weighted least squares with the bias of noisy sums taken out.

    Shares of the budget are 1 (bins) to 3, 3 and 3 (counts, sums of x, sums of y). The noise of a bin's d sums covers them together.
    """
    mu = privacy_mu(epsilon, delta)
    return np.stack([_binned_slopes(data, mu, rng) for _ in range(draws)])


def _binned_slopes(data: DataSet, mu: float, rng: np.random.Generator) -> Floats:
    X, first = with_constant(data), int(data.intercept)
    d, unit = data.X.shape[1], mu / math.sqrt(28.0)
    bins = _private_bins(data.X, unit, rng)
    noise = math.sqrt(2.0) / (3.0 * unit)
    counts = np.array([len(rows) for _, _, rows in bins]) + noise * rng.standard_normal(len(bins))
    reach = np.array([np.maximum(np.abs(low), np.abs(high)) for low, high, _ in bins])
    scale = np.column_stack([np.full((len(bins), first), noise), noise * math.sqrt(d) * reach])
    sums = np.array([X[rows].sum(axis=0) for _, _, rows in bins])
    if first:
        sums[:, 0] = counts
    sums[:, first:] += scale[:, first:] * rng.standard_normal(reach.shape)
    totals = np.array([data.y[rows].sum() for _, _, rows in bins])
    totals = totals + noise * data.response_bound * rng.standard_normal(len(bins))
    kept = counts >= 2.0
    weights = 1.0 / np.maximum(counts[kept], 1.0)
    S, t, bias = sums[kept], totals[kept], (weights[:, None] * scale[kept] ** 2).sum(axis=0)
    gram = (S * weights[:, None]).T @ S - np.diag(bias)
    return np.asarray(np.linalg.lstsq(gram, (S * weights[:, None]).T @ t, rcond=None)[0][first:])


def _private_bins(X: Floats, mu: float, rng: np.random.Generator) -> list[tuple[Floats, Floats, Integers]]:
    """PrivTree with halved boxes, pure ε of the same μ: lower and upper corners and rows of the bins; at least two for each column."""
    d = X.shape[1]
    epsilon = float(norm.logcdf(mu / 2.0) - norm.logcdf(-mu / 2.0))
    scale = 2.0 * 3.0 / epsilon
    decay = scale * math.log(2.0)
    waiting, bins = [(-np.ones(d), np.ones(d), np.arange(len(X)), 0)], []
    while waiting:
        low, high, rows, depth = waiting.pop()
        score = max(len(rows) - decay * depth, -decay) + rng.laplace(scale=scale)
        if score > 0.0 and depth < 40 * d:
            waiting += [(*half, depth + 1) for half in _halves(X, low, high, rows)]
        else:
            bins.append((low, high, rows))
    while len(bins) < 2 * (d + 1):
        widest = max(range(len(bins)), key=lambda k: float(np.prod(bins[k][1] - bins[k][0])))
        bins += _halves(X, *bins.pop(widest))
    return bins


def _halves(X: Floats, low: Floats, high: Floats, rows: Integers) -> list[tuple[Floats, Floats, Integers]]:
    """A box cut in the middle of its longest side."""
    k = int(np.argmax(high - low))
    middle = (low[k] + high[k]) / 2.0
    above = X[rows, k] >= middle
    left_high, right_low = high.copy(), low.copy()
    left_high[k] = right_low[k] = middle
    return [(low, left_high, rows[~above]), (right_low, high, rows[above])]


# --- iterative Hessian mixing --------------------------------------------------------------------------


def draw_mixing(
    data: DataSet, epsilon: float, delta: float, draws: int, rng: np.random.Generator, *, rounds: int = 3
) -> Floats:
    """IHM: Gaussian sketches in place of a noisy Gram matrix, and rounds on residuals clipped to R.

    Sketches are private for a row set to zero, as published; a replaced row would need more noise, which it is spared here.
    Half of ε is for sketches, half for the rounds' gradients.
    """
    X = with_constant(data)
    p = X.shape[1]
    X = X / math.sqrt(p)
    failure = delta / 10.0
    k = int(6.0 * max(p, math.log(4.0 * rounds / failure)))
    gamma = _sketch_noise(k, epsilon / 2.0, 0.75 * delta, rounds)
    slack = math.sqrt(2.0 * math.log(4.0 / min(delta, failure)))
    G = X.T @ X
    known = np.linalg.eigvalsh(G)[0] - gamma / math.sqrt(k) * (slack - rng.standard_normal(draws))
    added = np.maximum(0.0, gamma - np.maximum(0.0, known))
    roots = np.linalg.cholesky(G + added[:, None, None] * np.eye(p) + 1e-9 * np.eye(p))
    scale = 2.0 * data.response_bound * math.sqrt(rounds) / privacy_mu(epsilon / 2.0, delta / 4.0)
    theta = np.zeros((draws, p))
    for _ in range(rounds):
        sketch = np.einsum("dij,dkj->dki", roots, rng.standard_normal((draws, k, p)))  # rows of SX + √added·N, in law
        hessian = np.einsum("dki,dkj->dij", sketch, sketch) / k
        residuals = np.clip(data.y[:, None] - X @ theta.T, -data.response_bound, data.response_bound)
        right = (X.T @ residuals).T + scale * rng.standard_normal((draws, p))
        theta += np.linalg.solve(hessian, right[..., None])[..., 0]
    return theta[:, int(data.intercept) :] / math.sqrt(p)


def _sketch_noise(k: int, epsilon: float, delta: float, rounds: int) -> float:
    """The least eigenvalue that sketches of k rows need, by Rényi divergence; the release of how much is there already is counted in."""
    third = delta / 3.0

    def spent(gamma: float) -> float:
        def at(order: float) -> float:
            sketches = k / (2.0 * (order - 1.0)) * (order * math.log1p(-1.0 / gamma) - math.log1p(-order / gamma))
            rest = (math.log(1.0 / third) - math.log(order)) / (order - 1.0) + math.log1p(-1.0 / order)
            return rounds * sketches + rest

        best = minimize_scalar(at, bounds=(1.0 + 1e-6, gamma * (1.0 - 1e-9)), method="bounded")
        return float(best.fun) + math.sqrt(2.0 * k * math.log(1.25 / third)) / gamma

    return math.exp(brentq(lambda log: spent(math.exp(log)) - epsilon, math.log(2.0), math.log(1e9)))
