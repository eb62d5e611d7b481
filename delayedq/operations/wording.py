"""Durations and times in words."""

from __future__ import annotations

import unicodedata
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.dateformat import format as formatted
from django.utils.formats import localize, number_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

if TYPE_CHECKING:
    from datetime import datetime

_SMALL, _MINUTE, _HOUR = 1.0, 60.0, 3600.0


def units() -> list[tuple[int, str]]:
    """The units of a duration, in seconds, with their abbreviations in the active language."""
    return [(86_400, _("d")), (3_600, _("h")), (60, _("min")), (1, _("s"))]


def span(duration: timedelta) -> str:
    """The absolute duration, rounded, in its largest unit, below 10 also in the next one: 2 h 5 min, 45 s, 12 d."""
    known = units()
    left = _rounded(round(abs(duration).total_seconds()), [unit for unit, _name in known])
    for (unit, name), (part, part_name) in pairwise(known):
        if left >= unit:
            number, rest = divmod(left, unit)
            more = f" {rest // part} {part_name}" if number < 10 and rest >= part else ""  # noqa: PLR2004
            return f"{grouped(number)} {name}{more}"
    return f"{left} {known[-1][1]}"


def _rounded(seconds: int, known: list[int]) -> int:
    """To the smallest unit that is shown, which may make a whole one of the next larger: 23 h 50 min is a day."""
    for unit, part in pairwise(known):
        if seconds >= unit:
            shown = part if seconds < 10 * unit else unit
            return (seconds + shown // 2) // shown * shown
    return seconds


def units_of_seconds() -> list[str]:
    return [_("ms"), _("s"), _("min"), _("h")]


def seconds(duration: float | None) -> str:
    """A duration in seconds, as text in a fitting unit: 12 ms, 3.4 s, 5.6 min, 7.8 h; "-" for None."""
    if duration is None:
        return "-"
    small, *larger, hours = units_of_seconds()
    for limit, divisor, unit in zip((_SMALL, _MINUTE, _HOUR), (0.001, 1, _MINUTE), (small, *larger), strict=True):
        if abs(duration) < limit:
            return f"{localize(float(f'{duration / divisor:.3g}'))} {unit}".replace(".0 ", " ")  # 1000, not 1e+03
    return f"{grouped(duration / _HOUR, digits=1)} {hours}"


def relative(moment: datetime, now: datetime) -> str:
    """Such as "in 3 h", "2 s ago", "now"."""
    distance = moment - now
    if abs(distance) < timedelta(seconds=0.5):
        return _("now")
    words = _("in %(span)s") if distance > timedelta() else _("%(span)s ago")
    return words % {"span": span(distance)}


def exact(moment: datetime) -> str:
    """The one format of a time, in the current time zone: weekday, date, time and zone."""
    try:
        local = timezone.localtime(moment)
    except OverflowError:  # in the first or the last hours that there are
        local = moment
    # Translators: a date format of Django; the zone follows: Sun 2026-11-22 03:04:05 EST
    pattern = pgettext("format of a moment", "D Y-m-d H:i:s")
    # Django's own format of the zone is empty in the hour that comes twice, where it is needed most.
    return f"{formatted(local, pattern)} {local.tzname()}"


def both(moment: datetime, now: datetime) -> str:
    """Such as "in 3 h, Sun 2026-11-22 12:03:04 CET"."""
    return f"{relative(moment, now)}, {exact(moment)}"


def grouped(number: float, digits: int = 0) -> str:
    """The number with the separators of the active language: 1,234,567."""
    return number_format(round(number, digits), decimal_pos=digits, force_grouping=True)


def visible(text: str) -> str:
    """The text with surrogates, control and formatting characters (such as bidi overrides) written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}:
        return character
    return character.encode("unicode_escape").decode()


def printable(text: str) -> str:
    """The text with control characters and unpaired surrogates as escapes, safe to print on a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
