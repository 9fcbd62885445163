"""A release of counts over links that were drawn in secret, described by public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

from dplinked.errors import StudyError, plain_number
from dplinked.records import PlainlyShown

_MOST_ROWS = 1_000  # more rows per person than this leave nothing of the secret


@dataclass(frozen=True, repr=False)
class SecretSample(PlainlyShown):
    """What a release of right links among secretly drawn ones cost: all that adding it up with other releases needs.

    Attributes
    ----------
    rate
        The chance of each row to be drawn, the same for all of them, whatever the others do.
    rows
        How many rows one person may change the answers of.
    scale
        Standard deviation of the noise on each group's count.
    guess
        The public accuracy that was subtracted from each answer: a right link counts ``1 - guess``, a wrong one ``-guess``.
    """

    rate: float
    rows: int
    scale: float
    guess: float

    def __post_init__(self) -> None:
        whole = isinstance(self.rows, int) and not isinstance(self.rows, bool) and self.rows >= 1
        numbers = [plain_number(value) for value in (self.rate, self.scale, self.guess)]
        if not (whole and 0.0 < numbers[0] <= 1.0 and 0.0 < numbers[1] < float("inf") and 0.0 <= numbers[2] <= 1.0):
            raise StudyError(
                "A secret sample is described by rate, rows, scale and guess, as dpl.release_accuracy wrote them."
            )
        if self.rows > _MOST_ROWS:
            raise StudyError(f"A secret sample protects at most {_MOST_ROWS:,} rows per person. Declare fewer links.")

    @property
    def presence(self) -> float:
        """The largest distance, in units of the noise, by which one drawn row moves the counts."""
        return max(self.guess, 1.0 - self.guess) / self.scale

    @property
    def turning(self) -> float:
        """The distance, in units of the noise, by which the turned answer to one drawn row moves the counts."""
        return 1.0 / self.scale
