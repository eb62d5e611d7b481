"""When a schedule ticks: at a fixed period (`Every`), or by a cron expression in a time zone (`Cron`).

At a daylight saving (DST) change a local clock skips some times, or shows them twice. The hour field decides which
ticks come then:

- A *wall-clock* schedule names hours (`30 2 * * *`, `0 9-17 * * *`); each of its local times ticks once. A skipped time
  ticks at the first instant after the gap, a repeated time ticks the first time. Two times that fall on one instant,
  such as 02:30 in a gap and 03:00 at its end, are one tick.
- An *elapsed* schedule has an hour field of `*`, `*/n`, `H/n`, `R/n`, or all 24 hours (`0-23`). It ticks whenever the
  clock shows a matching time: twice in a repeated hour, and not at all for skipped times. So `*/15 * * * *` stays
  15 minutes apart. `Cron.wall_clock` says which of the two a schedule is.

Plain croniter (7.0) differs on the days of a DST change. In New York, it runs `30 1 * * *` twice on
3 November 2013, at 05:30 and at 06:30 UTC: here it ticks once, at 05:30. On 10 March 2013 it runs `0 */2 * * *` at
03:00 in place of 02:00, which the clock skips: here it goes on at 04:00.

All results are whole seconds, in UTC, between the years 2 and 9998.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from delayedq.core.cron_fields import LocalTimes, parse
from delayedq.core.instants import EPOCH
from delayedq.core.local_time import LATEST, as_utc, check_zone, instants, stretches
from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = timedelta(seconds=1)


class Schedule(Protocol):
    """Instants are aware, in any zone. A naive one raises ValueError."""

    def ticks_after(self, instant: datetime) -> Iterator[datetime]:
        """All ticks later than this instant, in UTC, strictly rising; there may be infinitely many."""
        ...

    def next_after(self, instant: datetime) -> datetime | None:
        """The first tick later than this instant; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, or six, the last being the second, or a name such as `@hourly`.

    `seed` determines the values of H and R: equal seeds give equal values on every machine. Use the schedule's name.
    Raises InvalidSchedule with the reason, also for an expression that never matches, such as `0 0 30 2 *`.

        Cron("30 2 * * *", ZoneInfo("America/New_York")).next_after(datetime.now(UTC))
    """

    expression: str
    zone: ZoneInfo
    seed: str = ""
    _times: LocalTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_zone(self.zone)
        if not isinstance(self.seed, str):
            raise InvalidSchedule(f"The seed of a schedule is a text, not {self.seed!r}.")
        object.__setattr__(self, "_times", parse(self.expression, self.seed))

    @property
    def wall_clock(self) -> bool:
        """True if it names hours of the day; False if it ticks in every matching hour and follows elapsed time."""
        return self._times.wall_clock

    def ticks_after(self, instant: datetime) -> Iterator[datetime]:
        return instants(self.zone, as_utc(instant), self._times)

    def next_after(self, instant: datetime) -> datetime | None:
        return next(self.ticks_after(instant), None)


@dataclass(frozen=True, slots=True)
class Every:
    """A period of whole seconds, counted from the Unix epoch: one hour ticks on the hour of UTC.

    With an `anchor`, an aware datetime, it counts from there, in both directions.
    Raises InvalidSchedule for less than a second, fractions of a second, and a period that ends after the year 9998.
    """

    period: timedelta
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        check_instant("anchor", self.anchor)
        if not isinstance(self.period, timedelta):
            raise InvalidSchedule(f"A period is a timedelta, not {self.period!r}.")
        if self.period > LATEST - EPOCH:
            raise InvalidSchedule(f"A period of {self.period} ends outside the range of times that can be stored.")
        if self.period < SECOND or self.period % SECOND:
            raise InvalidSchedule(f"A period is one second or more, in whole seconds, not {self.period}.")

    def ticks_after(self, instant: datetime) -> Iterator[datetime]:
        anchor = as_utc(self.anchor)
        first = (as_utc(instant) - anchor) // self.period + 1
        last = (LATEST - anchor) // self.period
        return (anchor + number * self.period for number in range(first, last + 1))

    def next_after(self, instant: datetime) -> datetime | None:
        return next(self.ticks_after(instant), None)


@dataclass(frozen=True, slots=True)
class Within:
    """The ticks of a schedule from `start` to `end`, both included; None: no limit. Raises InvalidSchedule."""

    schedule: Cron | Every
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name, instant in (("start", self.start), ("end", self.end)):
            if instant is not None:
                check_instant(name, instant)
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidSchedule(f"The end of a schedule, {self.end}, must not be before its start, {self.start}.")

    def ticks_after(self, instant: datetime) -> Iterator[datetime]:
        after = as_utc(instant)
        if self.start is not None:
            after = max(after, as_utc(self.start) - timedelta.resolution)
        found = self.schedule.ticks_after(after)
        if self.end is None:
            return found
        end = as_utc(self.end)
        return takewhile(lambda tick: tick <= end, found)

    def next_after(self, instant: datetime) -> datetime | None:
        return next(self.ticks_after(instant), None)


def check_instant(name: str, instant: object) -> None:
    """Raises InvalidSchedule, with the name, for anything but an aware datetime in whole seconds."""
    if not isinstance(instant, datetime) or instant.utcoffset() is None or instant.microsecond:
        raise InvalidSchedule(f"The {name} of a schedule is an aware datetime in whole seconds, not {instant!r}.")


def ticks(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """All in (after, until], strictly rising, in UTC."""
    end = as_utc(until)
    return takewhile(lambda tick: tick <= end, schedule.ticks_after(after))


def latest(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """The last in (after, until], or None. Asks the schedule fewer than 80 times, whatever the number of ticks."""
    start, end = as_utc(after), as_utc(until)
    found = _some(schedule, start, end)
    while found and end - found >= SECOND:
        middle = found + (end - found) / 2
        later = _first(schedule, middle, end)
        found, end = (later, end) if later else (found, middle)
    return found


def _some(schedule: Schedule, start: datetime, end: datetime) -> datetime | None:
    """Any tick in (start, end], searched in windows that grow backwards from the end."""
    window = timedelta(minutes=1)
    while end - start > window:
        if found := _first(schedule, end - window, end):
            return found
        window *= 8
    return _first(schedule, start, end)


def _first(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    tick = schedule.next_after(after)
    return tick if tick and tick <= until else None


def transition_after(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The first change of the zone's UTC offset (such as DST) in (after, until], as an instant in UTC, or None."""
    end = as_utc(until)
    for before, following in pairwise(stretches(zone, as_utc(after))):
        if following.start > end:
            break
        if following.offset != before.offset:
            return following.start
    return None


def as_zone(name: object) -> ZoneInfo:
    """The zone of the IANA time zone database with that name. Raises InvalidSchedule."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidSchedule(f"A time zone is the name of one, such as Europe/London, not {name!r}.")
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown; not a name but a path; a directory
        raise InvalidSchedule(f"There is no time zone {name!r}.") from None
