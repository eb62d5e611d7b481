"""Numbers and moments as people say them."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

_UNITS = ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (60, 1, "s"), (3_600, 60, "min"), (172_800, 3_600, "h"))
_HOUR, _DAY = 3_600, 86_400
#: What is less is said to be less: nobody reads 2.8e-06.
_LEAST = 0.001


def duration(seconds: float | None) -> str:
    """Such as `320 ms`, `4.2 s`, `12 min`: two or three digits, in the unit that suits."""
    if seconds is None:
        return "–"
    if isinf(seconds):
        return "for ever"
    if seconds == 0:
        return "0 s"
    if seconds < 0:
        return f"−{duration(-seconds)}"
    for limit, unit, name in _UNITS:
        if seconds < limit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds / _DAY)} days"


def count(number: float) -> str:
    """With thousands set apart; below 10, two digits of what is no whole number."""
    return f"{number:,.0f}" if number == int(number) else _short(number)


def share(part: float, whole: float) -> str:
    """A percentage that never says 100 or 0 of what is not all or nothing."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if percent in {0, 100}:
        return f"{percent:.0f}%"
    if percent > 99:  # noqa: PLR2004
        return f"{min(percent, 99.99):.2f}%"
    return f"{percent:.1f}%" if percent >= 0.1 else "under 0.1%"  # noqa: PLR2004


def several(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _short(number: float) -> str:
    if number >= 9.95:  # noqa: PLR2004
        return f"{number:,.0f}"
    return f"{number:.2g}" if number >= _LEAST else f"under {_LEAST}"


def times(since: datetime, until: datetime) -> tuple[str, str]:
    """A span from end to end: to the second if it is short, and without the day of its end if that is the same."""
    clock = "%H:%M:%S" if (until - since).total_seconds() < _HOUR else "%H:%M"
    whole = f"%-d %B %Y {clock}"
    return since.strftime(whole), until.strftime(clock if since.date() == until.date() else whole)
