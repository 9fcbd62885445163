"""The clerical audit: which links a person checks, how the answers are read, and the accuracies that they tell.

Everything here is computed from the two files without noise. It is for the steward, not for publication.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import to_arrow
from dplinked.data.csv import open_bytes, read_header
from dplinked.data.files import kind_of
from dplinked.data.format import File, split_file
from dplinked.data.keys import number
from dplinked.data.look import ANY, look_at
from dplinked.errors import StudyError
from dplinked.linker.quality import AccuracyEstimate
from dplinked.linker.rules import LATE, UNLINKED, Links
from dplinked.linker.strata import Strata, within_reach

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEVEL = 0.95
ANSWER = "correct"  # the column of an audit in which the reviewer answers
SECRET = "secret"  # the column that marks the list of a sample that was drawn in secret
DRAWN_BY, CHANCE = "drawn by", "chance"  # columns that say by which variable links were drawn, and with what chance
_OLD_ANSWER = "right"  # its name before version 0.2
# What a spreadsheet would take for a formula stands behind an apostrophe in lists; so does what has one already, so that reading takes exactly one away.
_FORMULA = r"('*[ \t\r\n]*[-=+@＝＋－＠])"
_AS_TEXT, _AS_IT_WAS = (rf"^{_FORMULA}", r"'\1"), (rf"^'{_FORMULA}", r"\1")
_NUMBER = r"^-[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$"  # which a spreadsheet may well take for one, such as a score
_OF_SPREADSHEETS = ("csv", "xlsx")
YES, NO, UNSURE = "yes", "no", "unsure"
LEAST_CHECKED = 5  # an audit asks for at least this many links per stratum, or for all links


def draw_audit(links: Links, strata: Strata, size: int, key: bytes, rates: Floats | None = None) -> Integers:
    """Draw about `size` rows whose links a person should check, each with the same chance or with that in `rates` (n), whatever the links are.

    Notes
    -----
    Row i is drawn if a keyed hash of i is below size/n of its range: each row by itself, with the same chance, in large groups and in small ones. No row's group and no row's link
    takes part, so another name for one person changes nobody's chance. Left out is the group of rows without a partner, whose accuracy is known;
    a row without a partner in another group counts as a wrong link. So while rows keep their groups, the numbers checked in them stay. The number of rows
    is random; its standard deviation is below the root of `size`.
    """
    groups, n = sum(name != UNLINKED for name in strata.names), links.right.size
    if size < min(LEAST_CHECKED * groups, n):
        raise StudyError(
            f"An audit of {size} links is too small for {groups} groups of links: ask for {LEAST_CHECKED} for each of them or more."
        )
    drawn = _position_hashes(n, key) < (sampling_rate(size, n) if rates is None else rates)
    return np.flatnonzero(drawn & (np.array(strata.names)[strata.of_row] != UNLINKED))


def sampling_rate(size: int, n: int) -> float:
    """The chance of each of n rows to be among about `size` drawn ones."""
    return min(1.0, size / max(n, 1))


def seed_key(seed: int) -> bytes:
    """The key of a public sample: everybody who knows the seed knows who was drawn."""
    return str(seed).encode()


def _position_hashes(n: int, key: bytes) -> Floats:
    """A number in [0, 1) for each of n positions, by a keyed hash of the position."""
    key = hashlib.sha256(key).digest()
    digests = (hashlib.blake2b(i.to_bytes(8, "little"), key=key, digest_size=8).digest() for i in range(n))
    return np.frombuffer(b"".join(digests), "<u8") / 2.0**64


def read_audit(answers: Any) -> pa.Table:
    """An audit as a table, its cells as they were before they were written for a spreadsheet.

    Spreadsheets save lists with the separator of their country: what it is follows from the names in the first line, which are ours.
    """
    if not isinstance(answers, (str, Path, File)):
        return to_arrow(answers, "audit")
    path, _ = split_file(answers)
    plain = not isinstance(answers, File) and kind_of(path) == "csv" and path.is_file()
    table = to_arrow(_as_saved(path) if plain else answers, "audit")
    return _rewritten(table, *_AS_IT_WAS) if kind_of(path) in _OF_SPREADSHEETS else table


def _as_saved(path: Path) -> File:
    """A list with the separator and the encoding that it was saved with."""
    for separator in (",", ";", "\t"):
        with open_bytes(path) as file:
            names = read_header(file, separator)
        if len(names) > 1 and answer_column(names) is not None:
            break
    else:
        separator = ","
    look = look_at(path)
    encoding = None if look is None or look.format.encoding == ANY else look.format.encoding
    return File(path, separator=separator, encoding=encoding)


def write_audit(table: pa.Table, target: Any) -> None:
    """Write a list of links for a spreadsheet, which takes every text in it as a text: none as a formula, which could send records away or run a program. :func:`read_audit` gives the texts back."""
    import pyarrow.csv

    pyarrow.csv.write_csv(_rewritten(table, *_AS_TEXT), target)


def _rewritten(table: pa.Table, pattern: str, by: str) -> pa.Table:
    """A table with a pattern replaced in its texts, but for negative numbers, and in the names of its columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for column in table.columns:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            texts = column.cast(pa.large_string())
            is_number = pc.match_substring_regex(texts, _NUMBER)
            column = pc.if_else(is_number, texts, pc.replace_substring_regex(texts, pattern, by))
        columns.append(column)
    return pa.table(columns, names=[re.sub(pattern, by, name) for name in table.column_names])


def answer_column(columns: Sequence[str]) -> str | None:
    """Name of the column that holds the reviewer's answers, None if an audit has no such column."""
    found = [name for name in (ANSWER, _OLD_ANSWER) if name in columns]
    if len(found) > 1:
        raise StudyError(
            f"The audit has answers in two columns, {ANSWER!r} and {_OLD_ANSWER!r} (its name in older files). Remove one of them."
        )
    return found[0] if found else None


def read_chances(table: pa.Table) -> tuple[Floats | None, str | None]:
    """With what chance each checked row was drawn, and by which variable; None if all had the same."""
    if DRAWN_BY not in table.column_names:
        return None, None
    named = set(table.column(DRAWN_BY).to_pylist())
    cells = table.column(CHANCE).to_pylist() if CHANCE in table.column_names else []
    chance = np.fromiter(map(number, cells), np.float64, len(cells))
    if len(named) != 1 or None in named or chance.size != table.num_rows or not ((chance > 0) & (chance <= 1)).all():
        raise StudyError(
            f"The columns {DRAWN_BY!r} and {CHANCE!r} of the audit must be as audit_sample(…, by=…) wrote them."
        )
    return chance, str(named.pop())


def read_answers(answers: Sequence[Any], column: str = ANSWER) -> NDArray[np.bool_]:
    """Read a reviewer's answers, yes or no in the usual spellings; `column` is named in the message if one is unclear.

    A link of which a reviewer was unsure counts as wrong, whoever it is of: the rule is set before anybody looks.
    """
    spelling: Mapping[str, bool] = {
        **dict.fromkeys(("1", "y", "yes", "true", "right", "correct", "t"), True),
        **dict.fromkeys(("0", "n", "no", "false", "wrong", "incorrect", "f", UNSURE), False),
    }
    texts = ["" if answer is None else str(answer).strip().lower() for answer in answers]
    if any(text not in spelling for text in texts):
        raise StudyError(
            f"Some checked links have no clear answer in the column {column!r}. Write yes, no or unsure for each; unsure counts as no. From a sample that was "
            "drawn without a key, a line may be taken out instead."
        )
    return np.array([spelling[text] for text in texts], dtype=bool)


def count_answers(
    of_row: Integers, size: int, answers: NDArray[np.bool_], chance: Floats | None
) -> tuple[Floats, Floats]:
    """Correct and checked links of each stratum, of `size` ones; if rows had different chances, as many of equal ones as tell as much.

    Notes
    -----
    With weights w = 1/chance, the share of correct links is ``Σwy/Σw``, as well known as from ``(Σw)²/Σw²`` links that were drawn with equal chances (Kish).
    """
    weight = np.ones(answers.size) if chance is None else 1.0 / chance
    total, squares, good = (np.bincount(of_row, part, minlength=size) for part in (weight, weight**2, weight * answers))
    checked = np.divide(total**2, squares, out=np.zeros(size), where=squares > 0.0)
    return np.divide(good, total, out=np.zeros(size), where=total > 0.0) * checked, checked


def estimate_from_audit(
    strata: Strata, rows: Integers, answers: NDArray[np.bool_], chance: Floats | None = None, by: str | None = None
) -> AccuracyEstimate:
    """Estimate the accuracies from checked links; `answers` says of each of the `rows` whether its link is correct.

    If they were drawn by the levels of a variable, `by` names it, and `chance` is the one that each row had.

    Notes
    -----
    Intervals are exact (Clopper and Pearson). Estimates are posterior means under a beta prior that is fitted to all blocks, or to those of a band, so
    those of small blocks are shrunk towards the others. Rows linked across blocks are a population of their own, and their
    estimate is not shrunk; it is one half if none of them was checked.
    """
    checked = np.bincount(strata.of_row[rows], minlength=len(strata.names))
    right = np.bincount(strata.of_row[rows], answers.astype(np.float64), minlength=len(strata.names)).astype(np.int64)
    effective = None if chance is None else count_answers(strata.of_row[rows], len(strata.names), answers, chance)
    good, counted = (right, checked) if effective is None else effective
    order = np.argsort(rows, kind="stable")
    ordinary = strata.kinds >= 0
    mean, weight = np.zeros(len(strata.names)), np.zeros(len(strata.names))
    for kind in set(strata.kinds[ordinary].tolist()):
        alike = strata.kinds == kind
        mean[alike], weight[alike] = _beta_prior(good[alike], counted[alike])
    unknown = np.isin(strata.names, LATE) & (counted == 0)  # these groups are drawn towards no other
    unknown &= np.array(strata.names) != UNLINKED
    apart = np.where(unknown, 0.5, good / np.maximum(counted, 1))
    accuracy = np.where(ordinary, (good + weight * mean) / np.maximum(counted + weight, 1e-12), apart)
    low, high = exact_interval(good, counted)
    share = strata.rows / strata.rows.sum()
    overall = float(share @ accuracy)
    raw = good / np.maximum(counted, 1)
    error = math.sqrt(
        float(np.sum(share**2 * np.maximum(raw * (1 - raw), 0.25 / np.maximum(counted, 1)) / np.maximum(counted, 1)))
    )
    return AccuracyEstimate(
        "audit", within_reach(accuracy, strata), low, high,
        (overall, max(0.0, overall - 1.96 * error), min(1.0, overall + 1.96 * error)),
        "that the reviewer's answers are right, and that the checked links were drawn at random", checked, right, rows=rows[order],
        answers=answers[order], chance=None if chance is None else chance[order], by=by, effective=effective,
    )  # fmt: skip


def exact_interval(good: Floats | Integers, checked: Floats | Integers) -> tuple[Floats, Floats]:
    """Clopper and Pearson's interval for each share good/checked; [0, 1] if nothing was checked."""
    from scipy.stats import beta

    tail = (1.0 - LEVEL) / 2.0
    low = np.where(good > 0, beta.ppf(tail, np.where(good > 0, good, 1), checked - good + 1), 0.0)
    high = np.where(good < checked, beta.ppf(1.0 - tail, good + 1, np.where(good < checked, checked - good, 1)), 1.0)
    return np.where(checked > 0, low, 0.0), np.where(checked > 0, high, 1.0)


def _beta_prior(good: Floats | Integers, checked: Floats | Integers) -> tuple[float, float]:
    """Fit a beta distribution to the blocks' counts: its mean, and the number of links that it weighs as much as."""
    from scipy.special import betaln

    mean = float((good.sum() + 0.5) / (checked.sum() + 1.0))
    weights = np.geomspace(2.0, 2000.0, 40)
    a, b = weights * mean, weights * (1.0 - mean)
    fit = (betaln(good[:, None] + a, (checked - good)[:, None] + b) - betaln(a, b)).sum(axis=0)
    return mean, float(weights[int(np.argmax(fit))])
