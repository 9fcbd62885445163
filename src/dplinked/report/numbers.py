"""Numbers for people."""

from __future__ import annotations

import math

_MOST_DECIMALS = 7
_LARGEST = 1e9
_DIGITS = "-0123456789"
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"


def format_number(value: float, error: float | None = None) -> str:
    """A number with separators between thousands; three digits of its error, or four of its own, are shown."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "-"
    size = abs(value) if error is None or not (math.isfinite(error) and error > 0.0) else error
    digits = 3 if size == abs(value) and error is None else 2
    decimals = max(0, digits - math.floor(math.log10(size))) if size > 0.0 else 0
    if decimals > _MOST_DECIMALS or abs(value) >= _LARGEST:
        return in_powers(f"{value:.3e}") if value else "0"
    return f"{value:,.{decimals}f}"


def format_p_value(value: float) -> str:
    """A p-value to three decimals, and never on the other side of .05 for being rounded."""
    if value < 0.0005:
        return "<0.001"
    shown = f"{value:.3f}"
    return f"{math.floor(1e4 * value) / 1e4:.4f}" if shown == "0.050" and value < 0.05 else shown


def format_percent(share: float) -> str:
    """A share in percent, three digits of it."""
    return f"{100.0 * share:.3g} %"


def in_powers(shown: str) -> str:
    """A number such as 2.5e-07 in powers of ten; any other as it is."""
    mantissa, _, power = shown.partition("e")
    if not power:
        return shown
    factor = "" if mantissa == "1" else f"{mantissa}×"
    return f"{factor}10{str(int(power)).translate(str.maketrans(_DIGITS, _RAISED))}"


def plain_digits(power: str) -> str:
    """An exponent in ordinary digits."""
    return power.translate(str.maketrans(_RAISED, _DIGITS))
