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

import hashlib
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from itertools import pairwise, product, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from croniter import croniter  # type: ignore[import-untyped]

from delayedq.core.instants import EPOCH
from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A cron expression as the local times it names.
#
# croniter parses the fields and says which days match, so L, W and # have its meaning. It differs in these:
#
# - `@daily` and the other names stand for the plain expressions, with a seed or without.
# - H and R are computed here from the seed. croniter's own R is random at each parse, so no two workers would agree;
#   and
#   its H takes minute and hour from one number, so 20,000 names share 240 times of day. H for the day of the month may
#   be
#   the 31st, as in croniter; H(1-28) exists in every month.
# - Where both day fields are given, that is, are not `*` or `?`, a day matches if either does, whatever their form.
#   croniter requires both for `mon#1`, `l5` and `0-6`, and ignores the day of the week beside `15w`.
# - A step larger than its range is refused: `*/90` in the minutes is hourly in croniter.
# - A range of one value, such as `9-9`, is that value: croniter takes it for the whole range, from 9 round to 9.
# - The steps of a range that wraps go on across its end: `21-6/7` is 21 and 4, in croniter 21 and 5.


DAY = timedelta(days=1)

MINUTE = timedelta(minutes=1)

ALIASES = {
    "@annually": "0 0 1 1 *",
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Field(NamedTuple):
    name: str
    #: The values allowed, for error messages.
    domain: str
    #: How many values it has, and the first.
    size: int
    first: int = 0
    values: Sequence[int] = ()


FIELDS = (
    Field("minute", "0 to 59", 60, values=range(60)),
    Field("hour", "0 to 23", 24, values=range(24)),
    Field("day of the month", "1 to 31, L for the last, or 15W for the weekday nearest to the 15th", 31, 1),
    Field("month", "1 to 12, or jan to dec", 12, 1),
    Field("day of the week", "0 to 7, or sun to sat, fri#2 for the second Friday, or L5 for the last", 7),
    Field("second", "0 to 59", 60, values=range(60)),
)

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

HOUR_FIELD, SECOND_FIELD = 1, 5

COUNTS = {5, 6}

DAY_FIELDS = slice(2, 5)

EVERY_DAY = "* * *"

ANY = {"*", "?"}

#: Between two sets of day fields, either of which may match.
EITHER = " | "

#: Hour fields that match every nth hour instead of naming hours of the day.
_OPEN = re.compile(r"\*|[*hr]/\d+", re.ASCII)

#: A range between two names or numbers, with the step after it.
_RANGE = re.compile(r"(?:(?<=,)|^)([a-z]{3}|\d{1,9})-([a-z]{3}|\d{1,9})(?:/(\d{1,9}))?(?=,|$)", re.ASCII)

_STEP = re.compile(r"/(\d{1,9})", re.ASCII)

_DRAWN = re.compile(r"[hr](\((?P<low>\d{1,4})-(?P<high>\d{1,4})\))?(/(?P<step>\d{1,4}))?", re.ASCII)

#: Day fields that croniter does not combine with another one as it combines plain numbers.
_NOT_PLAIN = re.compile(r"w|l\d|#", re.ASCII)

#: croniter splits at ASCII blanks only. A no-break space is part of a field, and refused with it.
_FIELD = re.compile(r"\S+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """On each matching day, each of `minutes` plus each of `seconds`: sorted, not empty, counted from midnight."""

    minutes: tuple[timedelta, ...]
    seconds: tuple[timedelta, ...] = (timedelta(0),)
    #: The fields day of the month, month and day of the week; two such sets with EITHER between them.
    days: str = EVERY_DAY
    #: How times that a local clock skips or repeats are treated: see `cron.expressions`.
    wall_clock: bool = True

    def between(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Those in [begin, end). All are readings of a local clock, stored as datetimes in UTC."""
        for midnight in self._midnights(begin.date()):
            if midnight >= end:
                return
            first = bisect_left(self.minutes, begin - midnight - self.seconds[-1])
            for minute in self.minutes[first:]:
                for second in self.seconds:
                    reading = midnight + minute + second
                    if reading >= end:
                        return
                    if reading >= begin:
                        yield reading

    def _midnights(self, day: date) -> Iterator[datetime]:
        while found := next_day(self.days, day):
            yield datetime.combine(found, time.min, UTC)
            day = found + DAY


def next_day(days: str, day: date) -> date | None:
    """The first matching day, this one or later; None if there is none within 50 years."""
    if days == EVERY_DAY:
        return day
    return min(filter(None, (_next_day(either, day) for either in days.split(EITHER))), default=None)


@lru_cache(maxsize=8192)
def _next_day(days: str, day: date) -> date | None:
    before = datetime.combine(day, time.min) - MINUTE
    try:
        found: datetime = croniter(f"0 0 {days}", before, datetime).get_next()
    except (ValueError, OverflowError):  # none (CroniterBadDateError), or after the year 9999
        return None
    return found.date()


def parse(expression: str, seed: str) -> LocalTimes:
    """The times that an expression of five or six fields names. Raises InvalidSchedule, naming the field."""
    texts = _split(expression)
    values = [_expand(expression, position, text, seed) for position, text in enumerate(texts)]
    minutes, hours = values[0], values[HOUR_FIELD]
    days = _days(texts[DAY_FIELDS], values[DAY_FIELDS])
    if next_day(days, date(2000, 1, 1)) is None:
        raise InvalidSchedule(f"{expression!r} never comes: no date is {' '.join(texts[DAY_FIELDS])!r}.")
    return LocalTimes(
        minutes=tuple(timedelta(hours=hour, minutes=minute) for hour, minute in product(hours, minutes)),
        seconds=tuple(
            timedelta(seconds=second) for second in (values[SECOND_FIELD] if len(values) > SECOND_FIELD else [0])
        ),
        days=days,
        wall_clock=not (_OPEN.fullmatch(texts[HOUR_FIELD]) or len(hours) == len(FIELDS[HOUR_FIELD].values)),
    )


def _days(texts: Sequence[str], values: Sequence[list[Any]]) -> str:
    """The day fields with H and R replaced; two sets of them where croniter would not let either day match."""
    month_day, month, week_day = (
        ",".join(map(str, drawn)) if _is_drawn(text) else text for text, drawn in zip(texts, values, strict=True)
    )
    are_both_given = not {month_day, week_day} & ANY
    is_full = any("*" in values[position] for position in (0, 2))  # croniter takes 0-6 for `*`
    if are_both_given and (is_full or _NOT_PLAIN.search(f"{month_day} {week_day}")):
        return f"{month_day} {month} *{EITHER}* {month} {week_day}"
    return f"{month_day} {month} {week_day}"


def _plain_range(field: Field, found: re.Match[str]) -> str:
    """The same without what croniter reads otherwise: a range of one value, and one that wraps and has a step."""
    low, high = _ordinal(found[1]), _ordinal(found[2])
    if low == high:
        return found[1]
    step, last = int(found[3] or 1), field.first + field.size - 1
    if low <= high or step in {0, 1} or not field.first <= high <= low <= last:
        return found[0]
    values = range(low, high + field.size + 1, step)
    return ",".join(str(value if value <= last else value - field.size) for value in values)


def _ordinal(text: str) -> int:
    """Of a number, or of the name of a month or a day of the week; -1 for another name."""
    if text.isdecimal():
        return int(text)
    if text in MONTHS:
        return MONTHS.index(text) + 1
    return DAYS.index(text) if text in DAYS else -1


def _split(expression: object) -> list[str]:
    if not isinstance(expression, str):
        raise InvalidSchedule(f"A cron expression is a text, not {expression!r}.")
    texts = _FIELD.findall(expression.lower())
    if not texts:
        raise InvalidSchedule("The cron expression is blank; an example is '0 9 * * mon-fri'.")
    if len(texts) == 1 and texts[0].startswith("@"):
        if texts[0] not in ALIASES:
            raise InvalidSchedule(f"{expression!r} is unknown; known are {', '.join(ALIASES)}.")
        return ALIASES[texts[0]].split()
    if len(texts) not in COUNTS:
        names = ", ".join(field.name for field in FIELDS[:SECOND_FIELD])
        raise InvalidSchedule(
            f"{expression!r} has {len(texts)} fields; a cron expression has five ({names}), or a sixth, the second. "
            "Years can't be given."
        )
    for part, text in zip(FIELDS, texts, strict=False):
        _check_steps(expression, part, text)
    return [_RANGE.sub(partial(_plain_range, field), text) for field, text in zip(FIELDS, texts, strict=False)]


def _expand(expression: str, position: int, text: str, seed: str) -> list[Any]:
    """The values that a field names. For the day fields they are complete only if the field is plain numbers."""
    field = FIELDS[position]
    if _is_drawn(text) and not seed:
        raise InvalidSchedule(f"{expression!r} draws its {field.name} from a seed, and there is none.")
    try:
        return _drawn(field, text, seed) if _is_drawn(text) else _values(position, text)
    except ValueError:
        problem = f"its {field.name} can't be {text!r}, but {field.domain}"
        raise InvalidSchedule(f"{expression!r} is not a cron expression: {problem}.") from None


@lru_cache(maxsize=8192)
def _values(position: int, text: str) -> list[Any]:
    """Cached, since croniter takes 150 microseconds for a field, and most are the same in thousands of schedules."""
    fields = ["*"] * len(FIELDS)
    fields[position] = text
    expanded: list[Any] = croniter.expand(" ".join(fields))[0][position]
    return list(FIELDS[position].values) if "*" in expanded and FIELDS[position].values else expanded


def _drawn(field: Field, text: str, seed: str) -> list[int]:
    """The value of H or R, or the values of H/n, which begin within the first n of its range. Raises ValueError."""
    found = _DRAWN.fullmatch(text)
    if found is None:
        raise ValueError(text)
    end = field.first + field.size - 1
    low, high = int(found["low"] or field.first), int(found["high"] or end)
    step = None if found["step"] is None else int(found["step"])
    if not field.first <= low <= high <= end or step == 0:
        raise ValueError(text)
    number, width = _number(field, text, seed), high - low + 1
    if step is None:
        return [low + number % width]
    return list(range(low + number % step % width, high + 1, step))  # within its range, also if the step is longer


def _check_steps(expression: str, field: Field, text: str) -> None:
    for step in _STEP.findall(text):
        if int(step) > field.size:
            raise InvalidSchedule(
                f"{expression!r} is not a cron expression: its {field.name} is {text!r}, but a step of {step} is "
                f"larger than its range, which has {field.size} values. For a longer period use 'every'."
            )


def _is_drawn(text: str) -> bool:
    """Whether the field uses H or R; no other field begins with one of these letters."""
    return text[0] in "hr"


def _number(field: Field, text: str, seed: str) -> int:
    """The draw of one field; H and R of the same field have different ones."""
    digest = hashlib.sha256(f"{text[0]} {field.name} {seed}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8])


# From readings of a local clock to instants, across daylight saving (DST) and other changes of the UTC offset.
#
# zoneinfo gives the offset at an instant, but not when it changes. So a zone is read along UTC as stretches of
# constant offset. These describe gaps and repeated hours of any length without the `fold` of a local time; within a
# stretch, conversion is an addition.


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
    """Raises InvalidSchedule for anything but a ZoneInfo; `as_zone` makes one from a name."""
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
    comes at its end, and a repeated time does not come again. The module has examples.
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


# Cron


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
