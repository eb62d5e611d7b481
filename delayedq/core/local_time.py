"""From readings of a local clock to instants, across daylight saving (DST) and other changes of the UTC offset.

zoneinfo gives the offset at an instant, but not when it changes. So a zone is read along UTC as stretches of constant
offset. These describe gaps and repeated hours of any length without the `fold` of a local time; within a stretch,
conversion is an addition.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.core.cron_fields import LocalTimes

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)

#: The first and the last year are left out: there a local time may be outside the range of a datetime.
EARLIEST, LATEST = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

#: Offsets are less than a day, so what a clock shows two days later it has never shown before.
REPEATED = 2 * DAY


class Stretch(NamedTuple):
    """From `start` until before `end`, both in UTC, the local clock shows UTC plus `offset`."""

    start: datetime
    end: datetime
    offset: timedelta


def as_utc(instant: datetime) -> datetime:
    """The same instant in UTC, limited to EARLIEST and LATEST. Raises ValueError for a naive datetime."""
    if instant.utcoffset() is None:
        raise ValueError(f"An instant is an aware datetime: {instant!r} has no time zone.")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        return EARLIEST if instant.year <= EARLIEST.year else LATEST


def check_zone(zone: object) -> None:
    """Raises InvalidSchedule for anything but a ZoneInfo; `core.cron.as_zone` makes one from a name."""
    if not isinstance(zone, ZoneInfo):
        raise InvalidSchedule(f"A time zone is a ZoneInfo, not {zone!r}.")


def stretches(zone: ZoneInfo, since: datetime) -> Iterator[Stretch]:
    """All stretches of the zone from then on, without gaps. Neighbours may have the same offset."""
    since = max(since, EARLIEST)
    for year in range(since.year, LATEST.year):
        for start, end, offset in _stretches_of(zone, year):
            if end > since:
                yield Stretch(max(start, since), end, offset)


def instants(zone: ZoneInfo, after: datetime, times: LocalTimes) -> Iterator[datetime]:
    """The instants of these local times after the instant `after`, strictly rising.

    The whole DST rule: a wall-clock time comes when the local clock first shows it or a later one. So a time in a gap
    comes at its end, and a repeated time does not come again. `core.cron` has examples.
    """
    after = max(after, EARLIEST)
    high = _high_water(zone, after)
    for start, end, offset in stretches(zone, after):
        begin = high if times.wall_clock else start + offset
        for reading in times.between(begin, end + offset):
            instant = max(start, reading - offset)
            if instant > after:
                yield instant
                after = instant
        high = max(high, end + offset)


def _high_water(zone: ZoneInfo, instant: datetime) -> datetime:
    """The latest reading that the local clock has shown by then; LATEST where no stretch is left."""
    seen = takewhile(lambda stretch: stretch.start <= instant, stretches(zone, instant - REPEATED))
    return max((min(end, instant) + offset for _, end, offset in seen), default=LATEST)


@lru_cache(maxsize=1024)
def _stretches_of(zone: ZoneInfo, year: int) -> tuple[Stretch, ...]:
    """Those of a year of UTC, compared day by day: no zone has ever changed twice within two days."""
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    days = [start + number * DAY for number in range((end - start).days + 1)]
    changes = [_change(zone, *two) for two in pairwise(days) if _offset(zone, two[0]) != _offset(zone, two[1])]
    return tuple(Stretch(*two, _offset(zone, two[0])) for two in pairwise([start, *changes, end]))


def _change(zone: ZoneInfo, day: datetime, following: datetime) -> datetime:
    """The first second after the beginning of the day, up to that of the following one, with another offset."""
    offset = _offset(zone, day)
    seconds = range((following - day) // SECOND)
    return day + SECOND * bisect_left(seconds, True, key=lambda second: _offset(zone, day + second * SECOND) != offset)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None  # a ZoneInfo always has one
    return offset
