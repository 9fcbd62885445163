"""Fields that both files have, and how well two values of a field agree."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dplinked.data.arrow import column_texts
from dplinked.data.keys import number
from dplinked.errors import StudyError, plain_faults, plain_number, shown, suggest
from dplinked.linkage.compared import name_words
from dplinked.records import PlainlyShown

if TYPE_CHECKING:
    import pyarrow as pa

Levels = NDArray[np.int8]
Codes = NDArray[np.int32]

KINDS = ("name", "date", "postcode", "id", "text", "number")
COMPARISONS = ("jaro-winkler", "exact", "date", "number")
MISSING = -1  # level of agreement if one value is missing, which is evidence neither for nor against a match

_COMPARISON = {"name": "jaro-winkler", "text": "jaro-winkler", "date": "date", "number": "number"}
# Words of a column's name that tell its kind, the first that occurs in this order.
_WORDS = {
    "id": ("id", "ssn", "nhs", "national", "insurance", "passport"),
    "name": ("name", "surname", "forename", "firstname", "lastname", "fullname"),
    "text": ("place", "city", "town", "country", "state", "region", "birthplace"),
    "number": ("age", "year", "amount"),
    "date": ("date", "dob", "birth", "birthdate", "birthday", "dateofbirth"),
    "postcode": ("postcode", "zip", "zipcode", "postal"),
}
_NEAR_DAYS, _NEAR_NUMBER = 7.0, 1.0  # differences that still count half, unless a field says otherwise
MOST_NAMES = 50  # columns that may be named at once; longer lists are taken for rows, and not shown
_CLOSE = 0.85  # two words with at least this Jaro-Winkler similarity count as the same
# If the similarity itself is the score, it is cut into these grades to estimate its evidence.
_GRADES = (0.75, 0.85, 0.92, 1.0)
_DAY_FIRST = re.compile(
    r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})"
)  # which of the two is the month does not matter, as long as both files agree


@dataclass(frozen=True, repr=False)
class Field(PlainlyShown):
    """A column in both files, and what it adds to a pair's score.

    Parameters
    ----------
    name
        Column in the left file, and in the right one unless `right` names another.
    kind
        ``name``, ``date``, ``postcode``, ``id``, ``text`` or ``number``. By default it is guessed from the column's name, never from its cells.
    compare
        ``jaro-winkler``, ``exact``, ``date`` or ``number``; by default the one that suits the kind. ``date`` scores 1 for the same
        day, and ½ if only the year, month or day differs, day and month are swapped, or they are few days apart (`near`).
    threshold
        For ``jaro-winkler``: a pair scores 1 if its similarity is at least this large (default .85), otherwise 0. With None, the
        similarity itself is the score.
    tolerance
        For ``number``: the largest difference that still scores 1.
    near
        For ``number`` and ``date``: the largest difference, of dates in days, that still scores ½. By default a week; for numbers 1, or ten times the
        tolerance if there is one.
    weight
        Factor that multiplies the field's score.
    right
        Name of the column in the right file, if it differs.
    """

    name: str
    kind: str | None = None
    compare: str | None = None
    threshold: float | None = _CLOSE
    tolerance: float = 0.0
    weight: float = 1.0
    right: str | None = None
    near: float | None = None

    @plain_faults
    def __post_init__(self) -> None:
        for text in (self.name, self.kind, self.compare, self.right):
            if not isinstance(text, str) and (text is not None or text is self.name):
                raise StudyError("A field's name, kind, compare and right are texts.")
        kind = self.kind or guess_kind(self.name)
        if kind not in KINDS:
            raise StudyError(f"Field {shown(self.name)}: kind must be one of {list(KINDS)}.{suggest(kind, KINDS)}")
        compare = self.compare or _COMPARISON.get(kind, "exact")
        if compare not in COMPARISONS:
            raise StudyError(
                f"Field {shown(self.name)}: compare must be one of {list(COMPARISONS)}, not {shown(compare)}."
                f"{suggest(compare, COMPARISONS)}"
            )
        if self.threshold is not None and not 0.0 < plain_number(self.threshold) <= 1.0:
            raise StudyError(f"Field {shown(self.name)}: threshold must lie in (0, 1], not {shown(self.threshold)}.")
        if not (0.0 < plain_number(self.weight) < math.inf and 0.0 <= plain_number(self.tolerance) < math.inf):
            raise StudyError(
                f"Field {shown(self.name)}: weight must be above 0 and tolerance not below 0, both finite."
            )
        near = {"date": _NEAR_DAYS, "number": 10.0 * self.tolerance or _NEAR_NUMBER}.get(compare, 0.0)
        if self.near is not None and not 0.0 <= plain_number(self.near) < math.inf:
            raise StudyError(
                f"Field {shown(self.name)}: near must be a difference of 0 or more, not {shown(self.near)}."
            )
        object.__setattr__(self, "near", near if self.near is None else float(self.near))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "compare", compare)
        object.__setattr__(self, "right", self.right or self.name)

    @property
    def grades(self) -> tuple[float, ...]:
        """Score of each level of agreement, before the weight; level 0 is disagreement."""
        if self.compare in ("date", "number"):
            return (0.0, 0.5, 1.0)
        if self.compare == "jaro-winkler" and self.threshold is None:
            return (0.0, *_GRADES)
        return (0.0, 1.0)


def guess_kind(name: str) -> str:
    """Guess the kind of a field from the whole words of its column's name: ``birth_date`` is a date, ``birth_place`` and ``candidate`` are texts."""
    words = name_words(name)
    return next((kind for kind, telling in _WORDS.items() if words & set(telling)), "text")


def read_fields(declared: Any) -> tuple[Field, ...]:
    """Read fields given as names, as ``{name: kind}`` or as :class:`Field` objects."""
    if not isinstance(declared, (list, tuple, Mapping)) or len(declared) > MOST_NAMES:
        raise StudyError(
            f"fields must be a list of at most {MOST_NAMES} column names, like ['given_name', 'surname', 'date_of_birth']."
        )
    if isinstance(declared, Mapping):
        declared = [value if isinstance(value, Field) else Field(name, value) for name, value in declared.items()]
    fields = tuple(_read_field(item) for item in declared)
    if not fields:
        raise StudyError("Linking needs at least one field: fields=['given_name', 'surname', …].")
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise StudyError("A field is named twice.")
    return fields


def _read_field(item: Any) -> Field:
    if isinstance(item, Field):
        return item
    if not isinstance(item, str):
        raise StudyError(f"A field must be a column's name or a dpl.Field, not {shown(item)}.")
    return Field(item)


def parse_field(text: str) -> Field:
    """Read a field as the command line gives it: ``surname``, ``dob:date`` or ``forename=given_name:name``."""
    columns, colon, kind = text.rpartition(":")
    if not (colon and columns and kind in KINDS):
        columns, kind = text, ""
    left, _, right = columns.partition("=")
    return Field(left, kind or None, right=right or None)


@dataclass(frozen=True)
class Comparer:
    """The values of one field in both files, encoded so that each distinct pair of values is compared only once.

    Attributes
    ----------
    left, right
        Code of each record's value in the left and in the right file, -1 if it is missing.
    values
        The distinct values in the order of their codes: texts, numbers, or rows of (year, month, day, number of the day).
    """

    field: Field
    left: Codes
    right: Codes
    values: Any

    def block(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[Levels, NDArray[np.float32]]:
        """Level of agreement and score of every pair of records, given by position (len(left) × len(right)). Each distinct pair of values is compared once."""
        a, i = np.unique(self.left[left], return_inverse=True)
        b, j = np.unique(self.right[right], return_inverse=True)
        levels, score = self._compare(a[:, None], b[None, :])
        place = np.ix_(i, j)
        return levels[place], score[place]

    def pairs(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[Levels, NDArray[np.float32]]:
        """Level of agreement and score of single pairs of records, given by position (N each)."""
        span = int(self.right.max(initial=0)) + 2
        codes, at = np.unique((self.left[left] + 1) * np.int64(span) + self.right[right] + 1, return_inverse=True)
        levels, score = self._compare((codes // span - 1).astype(np.int32), (codes % span - 1).astype(np.int32))
        return levels[at], score[at]

    def _compare(self, left: Codes, right: Codes) -> tuple[Levels, NDArray[np.float32]]:
        """Level of agreement and score of pairs of codes, of shapes that go together. A missing value scores 0."""
        compare = {"exact": _same, "jaro-winkler": _similar, "date": _same_date, "number": _near}
        levels, score = compare[self.field.compare or ""](self, left, right)
        absent = (left < 0) | (right < 0)
        levels[absent], score[absent] = MISSING, 0.0
        return levels, score * np.float32(self.field.weight)

    def readable(self) -> tuple[float, float]:
        """Share of the left and of the right records whose value can be compared."""
        return float((self.left >= 0).mean()), float((self.right >= 0).mean())


def make_comparers(left: pa.Table, right: pa.Table, fields: Sequence[Field]) -> list[Comparer]:
    """Read the values of fields from both files."""
    return [
        make_comparer(field, column_texts(left, field.name, "left"), column_texts(right, str(field.right), "right"))
        for field in fields
    ]


def make_comparer(field: Field, left: pa.ChunkedArray, right: pa.ChunkedArray) -> Comparer:
    """Encode the values of a field in both files, given as Arrow texts. Case and surrounding blanks are ignored."""
    import pyarrow as pa
    import pyarrow.compute as pc

    both = pa.chunked_array([*left.chunks, *right.chunks], pa.string())
    coded = pc.utf8_lower(pc.utf8_trim_whitespace(both)).combine_chunks().dictionary_encode()
    texts = coded.dictionary.to_pylist()
    codes = coded.indices.fill_null(len(texts)).to_numpy()
    missing = np.array([text == "" for text in texts], dtype=bool)
    values: Any = np.array([*texts, None], dtype=object)[:-1]
    if field.compare == "number":
        values = np.array([number(text) for text in texts], dtype=np.float64)
        missing = ~np.isfinite(values)
    elif field.compare == "date":
        values = _with_days(np.array([_date(text) for text in texts], dtype=np.int32).reshape(-1, 3))
        missing = values[:, 0] == 0
    kept = np.where(np.append(missing, True)[codes], -1, codes).astype(np.int32)
    return Comparer(field, kept[: len(left)], kept[len(left) :], values)


def _same(comparer: Comparer, left: Codes, right: Codes) -> tuple[Levels, NDArray[np.float32]]:
    """Whether values are equal."""
    equal = left == right
    return equal.astype(np.int8), equal.astype(np.float32)


def _similar(comparer: Comparer, left: Codes, right: Codes) -> tuple[Levels, NDArray[np.float32]]:
    """Jaro-Winkler similarity, in grades, or whether it reaches the field's threshold."""
    from rapidfuzz import process
    from rapidfuzz.distance import JaroWinkler

    threshold, each_with_each = comparer.field.threshold, left.ndim == 2
    similarity = (process.cdist if each_with_each else process.cpdist)(
        comparer.values[left.ravel()], comparer.values[right.ravel()], scorer=JaroWinkler.similarity, dtype=np.float32,
        score_cutoff=threshold, workers=-1 if left.size * (right.size if each_with_each else 1) > 100_000 else 1,
    )  # fmt: skip
    if threshold is None:
        return np.searchsorted(np.array(_GRADES, np.float32), similarity, side="right").astype(np.int8), similarity
    equal = similarity >= threshold
    return equal.astype(np.int8), equal.astype(np.float32)


def _near(comparer: Comparer, left: Codes, right: Codes) -> tuple[Levels, NDArray[np.float32]]:
    """Level 2 if numbers differ by no more than the field's tolerance, level 1 if they are near."""
    apart, field = np.abs(comparer.values[left] - comparer.values[right]), comparer.field
    same = apart <= field.tolerance
    levels = same.astype(np.int8) + (same | (apart <= (field.near or 0.0)))
    return levels, levels.astype(np.float32) / np.float32(2.0)


def _same_date(comparer: Comparer, left: Codes, right: Codes) -> tuple[Levels, NDArray[np.float32]]:
    """Level 2 for the same day, level 1 if one part differs, day and month are swapped, or the days are near."""
    a, b = comparer.values[left], comparer.values[right]
    parts = [a[..., part] == b[..., part] for part in range(3)]
    same = parts[0].astype(np.int8) + parts[1] + parts[2]
    swapped = parts[0] & (a[..., 1] == b[..., 2]) & (a[..., 2] == b[..., 1])
    near = np.abs(a[..., 3] - b[..., 3]) <= (comparer.field.near or 0.0)
    levels = np.where(same == 3, 2, (same == 2) | swapped | near).astype(np.int8)
    return levels, levels.astype(np.float32) / np.float32(2.0)


def _date(text: str) -> tuple[int, int, int]:
    """Year, month and day of an ISO date, of YYYYMMDD or of day/month/year; zeros if the text is none. Days that do not exist are taken as written."""
    if found := _DAY_FIRST.match(text):
        return int(found[3]), int(found[2]), int(found[1])
    digits = text[:10].replace("-", "").replace("/", "")
    if len(digits) < 8 or not digits[:8].isdecimal():
        return 0, 0, 0
    return int(digits[:4]), int(digits[4:6]), int(digits[6:8])


def _with_days(dates: NDArray[np.int32]) -> NDArray[np.int32]:
    """Dates with the number of the day in a fourth column, by which days apart are counted."""
    months = ((dates[:, 0] - 1970) * 12 + dates[:, 1] - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + dates[:, 2]
    return np.column_stack([dates, days]).astype(np.int32)
