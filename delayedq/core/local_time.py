"""When a local clock reads which time.

zoneinfo tells the offset at an instant, but not when it changes. So a zone is walked along UTC, as stretches of one
offset, which say all there is to say about gaps and repeated hours, however long, and never ask what `fold` a local
time has. Within a stretch, all is plain arithmetic.
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

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)

#: All time: the first and the last year are left out, since a local time may lie outside of what a datetime can hold.
EARLIEST, LATEST = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

#: Offsets lie within a day of UTC, so what a clock shows after that long it has never shown before.
REPEATED = 2 * DAY


class Stretch(NamedTuple):
    """From `start` until before `end`, both in UTC, the local clock shows UTC plus `offset`."""

    start: datetime
    end: datetime
    offset: timedelta


def as_utc(instant: datetime) -> datetime:
    """The same instant in UTC, or the end of all time that it lies beyond. Raises ValueError for a naive datetime."""
    if instant.utcoffset() is None:
        raise ValueError(f"An instant is an aware datetime: {instant!r} has no time zone.")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        return EARLIEST if instant.year <= EARLIEST.year else LATEST


def check_zone(zone: object) -> None:
    """Raises InvalidSchedule for what is no zone; `core.cron.as_zone` makes one of a name."""
    if not isinstance(zone, ZoneInfo):
        raise InvalidSchedule(f"A time zone is a ZoneInfo, not {zone!r}.")


def stretches(zone: ZoneInfo, since: datetime) -> Iterator[Stretch]:
    """All of the zone from then on, without holes. Neighbours may have the same offset."""
    since = max(since, EARLIEST)
    for year in range(since.year, LATEST.year):
        for start, end, offset in _stretches_of(zone, year):
            if end > since:
                yield Stretch(max(start, since), end, offset)


def instants(zone: ZoneInfo, after: datetime, times: LocalTimes) -> Iterator[datetime]:
    """When these local times come, later than the instant `after`, strictly rising; the rule stands in `core.cron`.

    A wall-clock time comes when the local clock first shows it or a later one. That one sentence is the whole rule:
    times in a gap come at its end, and times that were shown before do not come again.
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
    """The latest that the local clock has shown by then; at the end of all time, where no stretch is left, LATEST."""
    seen = takewhile(lambda stretch: stretch.start <= instant, stretches(zone, instant - REPEATED))
    return max((min(end, instant) + offset for _, end, offset in seen), default=LATEST)


@lru_cache(maxsize=1024)
def _stretches_of(zone: ZoneInfo, year: int) -> tuple[Stretch, ...]:
    """Those of a year of UTC: it is looked at day by day, since no zone has ever been changed twice within two days."""
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
