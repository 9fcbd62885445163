"""The settings of noisy gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from dplinked.errors import StudyError, plain_faults, plain_number, shown
from dplinked.records import PlainlyShown


@dataclass(frozen=True, repr=False)
class Descent(PlainlyShown):
    """Settings of noisy gradient descent, all public.

    Parameters
    ----------
    radius
        C: coefficients are kept within this l2 norm (on the scaled columns; in the user's units with
        ``calibration="paper"``).
    iterations
        T: number of steps, 2 to 4 is best with ``calibration="tight"``.
    step
        η: step size; by default from the second moment that the declared typical ranges imply.
    """

    radius: float = 1.0
    iterations: int = 3
    step: float | None = None

    @plain_faults
    def __post_init__(self) -> None:
        if not 0 < plain_number(self.radius) <= 1e30:
            raise StudyError(f"The descent's radius must be a finite number above 0, not {shown(self.radius)}.")
        if (
            isinstance(self.iterations, bool)
            or not isinstance(self.iterations, int)
            or not 1 <= self.iterations <= 10**6
        ):
            raise StudyError(f"The descent's iterations must be a whole number above 0, not {shown(self.iterations)}.")
        if self.step is not None and not 0 < plain_number(self.step) <= 1e30:
            raise StudyError(f"The descent's step must be a finite number above 0, not {shown(self.step)}.")
