"""Generated households with income and consumption, linked with errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STATES = ("act", "nsw", "nt", "qld", "sa", "tas", "vic", "wa")
STATE_SHARES = (0.02, 0.34, 0.01, 0.19, 0.08, 0.03, 0.23, 0.10)


def mislink(blocks: Integers, accuracy: Floats, rng: np.random.Generator, *, varying: bool = False) -> Integers:
    """Draw an exchangeable random permutation within blocks: row i gets the response of row ``result[i]``.

    Parameters
    ----------
    blocks
        Block number of each row, 0 … B-1 (n).
    accuracy
        Expected share of correct links in each block (B); at least 1/m in a block of m rows.
    varying
        Whether the number of wrong links in a block varies as it does where links go wrong independently of each other. By default it is as near to its expectation as whole numbers are.

    Notes
    -----
    In each block a random subset of the rows is permuted in a cycle. Its expected size is (1-γ)m, and it is never a single row. This
    has exactly the marginals of exchangeable linkage errors: a link is correct with probability γ, and a wrong one
    is equally likely to fall on any other row of the block.
    """
    n, sizes = blocks.size, np.bincount(blocks, minlength=accuracy.size)
    wrong = (1.0 - accuracy) * sizes
    whole = np.floor(wrong)
    if varying:
        drawn = rng.binomial(sizes, 1.0 - accuracy)
        cycled = np.where(drawn == 1, 2.0 * (rng.random(accuracy.size) < 0.5), drawn)
    else:
        cycled = np.where(
            wrong < 2.0,
            2.0 * (rng.random(accuracy.size) < wrong / 2.0),
            whole + (rng.random(accuracy.size) < wrong - whole),
        )
    cycled = np.where(sizes < 2, 0, np.minimum(cycled, sizes)).astype(np.int64)
    order = np.lexsort((rng.random(n), blocks))  # rows by block, in random order within
    start = np.concatenate([[0], np.cumsum(sizes)])[blocks[order]]
    place = np.arange(n) - start
    count = cycled[blocks[order]]
    source = np.where(place < count, start + (place + 1) % np.maximum(count, 1), start + place)
    result = np.empty(n, dtype=np.int64)
    result[order] = order[source]
    return result


def paper_design(n: int, rng: np.random.Generator, block_size: int = 25) -> tuple[Floats, Integers, Floats]:
    """Draw x ~ U(-1, 1), blocks of 25 rows, and accuracies from U(.6, .9), as in settings 1 and 2 of [LPK24]."""
    blocks = np.arange(n) // block_size
    return rng.uniform(-1.0, 1.0, n), blocks, rng.uniform(0.6, 0.9, int(blocks.max()) + 1)


@dataclass(frozen=True)
class Money:
    """Income and consumption of each household, to the cent, and whether it lives in the south (n each)."""

    income: Floats
    south: NDArray[np.bool_]
    consumption: Floats


def draw_money(n: int, rng: np.random.Generator, slope: float = 0.55) -> Money:
    """Draw lognormal incomes and ``consumption = 6,000 + slope·income + 1,500·[south] + noise``, at least 500."""
    income = np.clip(rng.lognormal(np.log(28_000.0), 0.55, n), 2_000.0, 150_000.0)
    south = rng.random(n) < 0.4
    consumption = np.clip(6_000.0 + slope * income + 1_500.0 * south + rng.normal(0.0, 6_000.0, n), 500.0, None)
    return Money(np.round(income, 2), south, np.round(consumption, 2))


def linked_households(n: int, seed: int) -> dict[str, NDArray[np.generic] | list[str]]:
    """Households with income, region and consumption, linked within 8 states; 91 % of the links are correct.

    Consumption is ``6,000 + 0.55·income + 1,500·[south] + noise``; incomes are lognormal around 30,000.
    The column ``consumption`` holds the linked values, ``true_consumption`` the households' own.
    """
    rng = np.random.default_rng(seed)
    blocks = rng.choice(len(STATES), n, p=STATE_SHARES)
    money = draw_money(n, rng)
    links = mislink(blocks, np.full(len(STATES), 0.91), rng)
    return {
        "income": money.income,
        "region": np.where(money.south, "south", "north"),
        "state": [STATES[b] for b in blocks],
        "consumption": money.consumption[links],
        "true_consumption": money.consumption,
    }
