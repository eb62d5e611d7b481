"""A cron expression as the local times it names.

croniter reads the fields, and says which days match: L, W and # mean what they mean to it. Two things differ. `@daily`
and its like stand for the plain expressions, seed or not. And R is drawn from the seed, as H is: croniter's own R draws
anew whenever it is read, and no two workers would agree. An H for the day of the month may be the 31st, as in croniter;
H(1-28) comes every month.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from croniter import croniter  # type: ignore[import-untyped]

from delayedq.exceptions import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)

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
    #: For people: what may stand there.
    domain: str
    values: Sequence[int] = ()


FIELDS = (
    Field("minute", "0 to 59", range(60)),
    Field("hour", "0 to 23", range(24)),
    Field("day of the month", "1 to 31, L for the last, or 15W for the weekday nearest to the 15th"),
    Field("month", "1 to 12, or jan to dec"),
    Field("day of the week", "0 to 7, or sun to sat, fri#2 for the second Friday, or L5 for the last"),
    Field("second", "0 to 59", range(60)),
)
HOUR, SECOND = 1, 5
COUNTS = {5, 6}
DAY_FIELDS = slice(2, 5)
EVERY_DAY = "* * *"

#: Hours that go on and on, instead of being named.
_OPEN = re.compile(r"\*|[*hr]/\d+", re.ASCII)
#: croniter knows no other blanks. A no-break space is part of a field, which then is wrong.
_FIELD = re.compile(r"\S+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """On each day that matches, each of `minutes` plus each of `seconds`: sorted, not empty, counted from midnight."""

    minutes: tuple[timedelta, ...]
    seconds: tuple[timedelta, ...] = (timedelta(0),)
    #: The fields day of the month, month and day of the week.
    days: str = EVERY_DAY
    #: What becomes of times that a local clock skips or repeats: see `core.cron`.
    wall_clock: bool = True

    def between(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Those in [begin, end). All three are readings of a local clock, written as if it showed UTC."""
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
    """The first day that matches, this one or later; None if there is none in 50 years."""
    return day if days == EVERY_DAY else _next_day(days, day)


@lru_cache(maxsize=8192)
def _next_day(days: str, day: date) -> date | None:
    before = datetime.combine(day, time.min) - MINUTE
    try:
        found: datetime = croniter(f"0 0 {days}", before, datetime).get_next()
    except (ValueError, OverflowError):  # none (CroniterBadDateError), or beyond all time
        return None
    return found.date()


def parse(expression: str, seed: str) -> LocalTimes:
    """The times that an expression of five or six fields names. Raises InvalidSchedule, naming the field."""
    texts = _split(expression)
    values = [_expand(expression, position, text, seed) for position, text in enumerate(texts)]
    minutes, hours = values[0], values[HOUR]
    days = [
        ",".join(map(str, drawn)) if _is_drawn(text) else text
        for text, drawn in zip(texts[DAY_FIELDS], values[DAY_FIELDS], strict=True)
    ]
    if next_day(" ".join(days), date(2000, 1, 1)) is None:
        raise InvalidSchedule(f"{expression!r} never comes: no date is {' '.join(texts[DAY_FIELDS])!r}.")
    return LocalTimes(
        minutes=tuple(timedelta(hours=hour, minutes=minute) for hour, minute in product(hours, minutes)),
        seconds=tuple(timedelta(seconds=second) for second in (values[SECOND] if len(values) > SECOND else [0])),
        days=" ".join(days),
        wall_clock=not (_OPEN.fullmatch(texts[HOUR]) or len(hours) == len(FIELDS[HOUR].values)),
    )


def _split(expression: object) -> list[str]:
    if not isinstance(expression, str):
        raise InvalidSchedule(f"A cron expression is a text, not {expression!r}.")
    texts = _FIELD.findall(expression.lower())
    if not texts:
        raise InvalidSchedule("The cron expression is blank.")
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
    return texts


def _expand(expression: str, position: int, text: str, seed: str) -> list[int]:
    """The values that a field names; of a field of days, only those that are plain numbers can be relied upon."""
    field = FIELDS[position]
    if _is_drawn(text) and not seed:
        raise InvalidSchedule(f"{expression!r} draws its {field.name} from a seed, and there is none.")
    fields = ["*"] * len(FIELDS)
    fields[position] = f"h{text[1:]}" if _is_drawn(text) else text
    try:
        expanded = croniter.expand(" ".join(fields), hash_id=_hash_id(text, seed))[0][position]
    except ValueError:
        problem = f"its {field.name} can't be {text!r}, but {field.domain}"
        raise InvalidSchedule(f"{expression!r} is no cron expression: {problem}.") from None
    return list(field.values) if "*" in expanded and field.values else expanded


def _is_drawn(text: str) -> bool:
    """No other field begins with one of these letters."""
    return text[0] in "hr"


def _hash_id(text: str, seed: str) -> bytes:
    """H and R of one seed differ."""
    return f"{seed}{'/R' if text[0] == 'r' else ''}".encode(errors="surrogatepass")
