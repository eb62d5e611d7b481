"""A cron expression as the local times it names.

croniter parses the fields and says which days match, so L, W and # have its meaning. It differs in these:

- `@daily` and the other names stand for the plain expressions, with a seed or without.
- H and R are computed here from the seed. croniter's own R is random at each parse, so no two workers would agree; and
  its H takes minute and hour from one number, so 20,000 names share 240 times of day. H for the day of the month may be
  the 31st, as in croniter; H(1-28) exists in every month.
- Where both day fields are given, that is, are not `*` or `?`, a day matches if either does, whatever their form.
  croniter requires both for `mon#1`, `l5` and `0-6`, and ignores the day of the week beside `15w`.
- A step larger than its range is refused: `*/90` in the minutes is hourly in croniter.
- A range of one value, such as `9-9`, is that value: croniter takes it for the whole range, from 9 round to 9.
- The steps of a range that wraps go on across its end: `21-6/7` is 21 and 4, in croniter 21 and 5.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from croniter import croniter  # type: ignore[import-untyped]

from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
HOUR, SECOND = 1, 5
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
    #: How times that a local clock skips or repeats are treated: see `core.cron`.
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
    minutes, hours = values[0], values[HOUR]
    days = _days(texts[DAY_FIELDS], values[DAY_FIELDS])
    if next_day(days, date(2000, 1, 1)) is None:
        raise InvalidSchedule(f"{expression!r} never comes: no date is {' '.join(texts[DAY_FIELDS])!r}.")
    return LocalTimes(
        minutes=tuple(timedelta(hours=hour, minutes=minute) for hour, minute in product(hours, minutes)),
        seconds=tuple(timedelta(seconds=second) for second in (values[SECOND] if len(values) > SECOND else [0])),
        days=days,
        wall_clock=not (_OPEN.fullmatch(texts[HOUR]) or len(hours) == len(FIELDS[HOUR].values)),
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
        names = ", ".join(field.name for field in FIELDS[:SECOND])
        raise InvalidSchedule(
            f"{expression!r} has {len(texts)} fields; a cron expression has five ({names}), or a sixth, the second. "
            "Years can't be given."
        )
    for field, text in zip(FIELDS, texts, strict=False):
        _check_steps(expression, field, text)
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
    number = _number(field, text, seed)
    if step is None:
        return [low + number % (high - low + 1)]
    return list(range(low + number % step, high + 1, step))


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
