"""Names of ticks, which missed ticks still run, and the daily schedule of `queue.cron`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import time, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING

from delayedq.cron.expressions import LATEST, LocalTimes, as_utc, check_zone, instants
from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

#: `skip` drops a tick that is later than this.
SKIP_AFTER = timedelta(minutes=1)


# Names


def config_hash(text: str) -> str:
    """A fingerprint of a definition, the MD5 of its text: 32 hexadecimal digits."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def daily_hash(zone: str, hours: Iterable[time]) -> str:
    """Of a daily schedule: the same for the same hours in any order."""
    return config_hash(f"\ndaily-cron:\n  zone: {zone}\n  hours: {', '.join(map(_hour_text, sorted(set(hours))))}\n")


def periodic_hash(period: timedelta) -> str:
    """Of a period, which counts in milliseconds."""
    return config_hash(f"\nperiodic-tick:\n  period-ms: {period // timedelta(milliseconds=1)}\n")


def tick_key(prefix: str, config_hash: str, instant: datetime) -> str:
    """Such as `prefix/hash/20130310-070000.000000000`: in UTC, down to nanoseconds; 59 characters and the prefix."""
    utc = as_utc(instant)
    return f"{prefix}/{config_hash}/{utc.year:04}{utc:%m%d-%H%M%S.%f}000"  # %Y would write the year 33 as 33


def _hour_text(hour: time) -> str:
    """As Java's LocalTime prints it: seconds if there are any, and then three digits more, or six."""
    if hour.microsecond:
        return hour.isoformat("microseconds" if hour.microsecond % 1000 else "milliseconds")
    return hour.isoformat("seconds" if hour.second else "minutes")


# Misfires


class Misfire(StrEnum):
    """What happens to missed ticks: those whose time has passed before an attempt began."""

    ONCE = "once"
    """The latest of them runs."""
    SKIP = "skip"
    """None of them runs, except one at most SKIP_AFTER late."""
    ALL = "all"
    """Each of them runs."""


def still_due(
    missed: Sequence[datetime], misfire: Misfire, starting_deadline: timedelta | None, now: datetime
) -> list[datetime]:
    """Which of `missed` (past ticks that have not begun, in order) still run.

    A tick later than `starting_deadline` never runs. Without a deadline the limit of `skip` is SKIP_AFTER, and
    the other policies have none. With `once`, a tick that is at most SKIP_AFTER late runs beside the latest.
    """
    lateness = {tick: as_utc(now) - as_utc(tick) for tick in missed}
    limit = SKIP_AFTER if misfire is Misfire.SKIP and starting_deadline is None else starting_deadline
    found = [tick for tick in missed if limit is None or lateness[tick] <= limit]
    if misfire is not Misfire.ONCE:
        return found
    return [tick for tick in found if tick == missed[-1] or lateness[tick] <= SKIP_AFTER]


class Overlap(StrEnum):
    """What happens to a tick that is due while another one of its schedule has begun and not ended."""

    ALLOW = "allow"
    """It runs beside it."""
    SKIP = "skip"
    """It is cancelled."""
    WAIT = "wait"
    """It starts when the other one has ended; at most one waits, later ones are cancelled."""


def expires_at(
    due_at: datetime, following: datetime | None, misfire: Misfire, starting_deadline: timedelta | None
) -> datetime | None:
    """The instant after which a tick that is due at `due_at` counts as missed and must not begin; None: never.

    `following` is the tick after it. With `once` the tick expires when that one comes, but not while it is less than
    SKIP_AFTER late, so that ticks a second apart are not lost to a delay of a second.
    """
    limits = []
    if misfire is Misfire.SKIP or starting_deadline is not None:
        limits.append(later(due_at, SKIP_AFTER if starting_deadline is None else starting_deadline))
    if misfire is Misfire.ONCE and following is not None:
        limits.append(max(following, due_at + SKIP_AFTER))
    return min(limits, default=None)


def later(moment: datetime, duration: timedelta) -> datetime:
    """The sum; LATEST if it is beyond that."""
    try:
        return moment + duration
    except OverflowError:
        return LATEST


def jittered(seed: str, nominal_at: datetime, jitter: timedelta) -> datetime:
    """`nominal_at` plus a share of `jitter`, in milliseconds: the same for the same tick on every machine."""
    digest = hashlib.sha256(f"{seed} {as_utc(nominal_at).isoformat()}".encode(errors="surrogatepass")).digest()
    share = int.from_bytes(digest[:6]) / 2**48
    return later(nominal_at, timedelta(milliseconds=int(jitter / timedelta(milliseconds=1) * share)))


# Daily schedules


@dataclass(frozen=True, slots=True)
class DailySchedule:
    """Each day at these `hours` (naive local times), by the rule for wall-clock schedules in `cron.expressions`.

    Every `schedule_interval`, the ticks of the next `schedule_in_advance` are placed, and at least the next one; zero
    means only the next one. Both are timedeltas. Raises InvalidSchedule.
    """

    zone: ZoneInfo
    hours: tuple[time, ...]
    schedule_in_advance: timedelta
    schedule_interval: timedelta

    def __post_init__(self) -> None:
        check_zone(self.zone)
        _check_duration("schedule_in_advance", self.schedule_in_advance, timedelta(0))
        _check_duration("schedule_interval", self.schedule_interval, timedelta.resolution)
        object.__setattr__(self, "hours", _sorted_hours(self.hours))

    def next_times(self, now: datetime) -> list[datetime]:
        """All later than `now`, up to `now` plus `schedule_in_advance`, and at least one; in UTC, strictly rising."""
        start = as_utc(now)
        upcoming = instants(self.zone, start, LocalTimes(tuple(map(_since_midnight, self.hours))))
        first = next(upcoming, None)
        if first is None:
            return []
        return [first, *takewhile(lambda tick: tick - start <= self.schedule_in_advance, upcoming)]


def _check_duration(name: str, duration: object, least: timedelta) -> None:
    if not isinstance(duration, timedelta):
        raise InvalidSchedule(f"{name} is a timedelta, not {duration!r}.")
    if duration < least:
        raise InvalidSchedule(f"{name} is {'over zero' if least else 'zero or more'}, not {duration}.")


def _sorted_hours(hours: object) -> tuple[time, ...]:
    """Duplicates are merged."""
    if not isinstance(hours, Iterable):
        raise InvalidSchedule(f"The hours of a daily schedule are times, not {hours!r}.")
    hours = list(hours)
    for hour in hours:
        if not isinstance(hour, time):
            raise InvalidSchedule(f"An hour of a daily schedule is a time, not {hour!r}.")
        if hour.tzinfo is not None:
            raise InvalidSchedule(f"An hour of a daily schedule is naive, since it has a zone, unlike {hour!r}.")
    if not hours:
        raise InvalidSchedule("A daily schedule has at least one hour.")
    return tuple(sorted(set(hours)))


def _since_midnight(hour: time) -> timedelta:
    return timedelta(hours=hour.hour, minutes=hour.minute, seconds=hour.second, microseconds=hour.microsecond)
