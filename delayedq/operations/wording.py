"""Durations and times in words."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from django.utils import timezone

if TYPE_CHECKING:
    from datetime import datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(duration: timedelta) -> str:
    """The absolute duration in its largest unit, below 10 also in the next one: 2 h 5 min, 45 s, 12 d."""
    left = round(abs(duration).total_seconds())
    for (unit, name), (part, part_name) in pairwise(_UNITS):
        if left >= unit:
            number, rest = divmod(left, unit)
            more = f" {rest // part} {part_name}" if number < 10 and rest >= part else ""  # noqa: PLR2004
            return f"{number:,} {name}{more}"
    return f"{left} s"


def relative(moment: datetime, now: datetime) -> str:
    """Such as "in 3 h", "2 s ago", "now"."""
    distance = moment - now
    if abs(distance) < timedelta(seconds=0.5):
        return "now"
    return f"in {span(distance)}" if distance > timedelta() else f"{span(distance)} ago"


def clock(moment: datetime, now: datetime) -> str:
    """The time in the current time zone, with the date unless it is the date of `now`."""
    local = timezone.localtime(moment)
    today = local.date() == timezone.localtime(now).date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S %Z}"


def both(moment: datetime, now: datetime) -> str:
    """Such as "in 3 h, at 12:03:04"."""
    return f"{relative(moment, now)}, at {clock(moment, now)}"


def printable(text: str) -> str:
    """The text with control characters and unpaired surrogates as escapes, safe to print on a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
