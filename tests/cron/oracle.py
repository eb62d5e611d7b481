"""A second, independent implementation of cron expressions: it tries every local minute.

Nothing here is shared with the code under test: no parser, since each expression is made together with the values it
stands for, and no arithmetic, since each local minute of a zone is looked up by its `fold` (PEP 495).
"""

from __future__ import annotations

import calendar
import random
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Callable

DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
MINUTES = 24 * 60
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - readings of a local clock are naive here


# Expressions


class Field(NamedTuple):
    text: str
    values: frozenset[int]
    #: Whether it names its values: `*` and `*/n` do not.
    named: bool = True


class Days(NamedTuple):
    """The fields day of the month, month and day of the week."""

    text: str
    match: Callable[[date], bool]


@dataclass(frozen=True)
class Expression:
    minute: Field
    hour: Field
    days: Days
    second: Field | None = None

    def __str__(self):
        fields = [self.minute.text, self.hour.text, self.days.text]
        return " ".join([*fields, self.second.text] if self.second else fields)

    @property
    def wall_clock(self):
        return self.hour.named and len(self.hour.values) < 24

    @property
    def minutes(self):
        """Of a day."""
        return [hour * 60 + minute for hour in sorted(self.hour.values) for minute in sorted(self.minute.values)]

    @property
    def ticks_a_day(self):
        return len(self.minute.values) * len(self.hour.values) * len(self.second.values if self.second else "0")


def last_of_month(day):
    return calendar.monthrange(day.year, day.month)[1]


def on_days(*numbers):
    return lambda day: day.day in numbers


def on_weekdays(*numbers):
    """Sunday is 0."""
    return lambda day: day.isoweekday() % 7 in numbers


def in_months(*numbers):
    return lambda day: day.month in numbers


def nth_weekday(weekday, *nth):
    return lambda day: day.isoweekday() % 7 == weekday and (day.day + 6) // 7 in nth


def last_weekday(weekday):
    return lambda day: day.isoweekday() % 7 == weekday and day.day + 7 > last_of_month(day)


def last_day(day):
    return day.day == last_of_month(day)


def near(number):
    """The weekday nearest to that day of the month, in the same month."""

    def match(day):
        wanted = day.replace(day=min(number, last_of_month(day)))
        weekdays = [d for d in range(1, last_of_month(day) + 1) if day.replace(day=d).isoweekday() < 6]
        return day.day == min(weekdays, key=lambda d: (abs(d - wanted.day), d))

    return match


def either(*matches):
    return lambda day: any(match(day) for match in matches)


def both(*matches):
    return lambda day: all(match(day) for match in matches)


DAYS = [
    *[Days("* * *", lambda day: True)] * 20,
    Days("1 * *", on_days(1)),
    Days("31 * *", on_days(31)),
    Days("29 2 *", both(on_days(29), in_months(2))),
    Days("1 1 *", both(on_days(1), in_months(1))),
    Days("30,31 12 *", both(on_days(30, 31), in_months(12))),
    Days("10 3 *", both(on_days(10), in_months(3))),
    Days("1,15 * *", on_days(1, 15)),
    Days("10-20 * ?", on_days(*range(10, 21))),
    Days("*/10 * *", on_days(1, 11, 21, 31)),
    Days("5/8 * *", on_days(5, 13, 21, 29)),
    Days("2-30/4 4,10 *", both(on_days(*range(2, 31, 4)), in_months(4, 10))),
    Days("L * *", last_day),
    Days("l 2 *", both(last_day, in_months(2))),
    Days("15W * *", near(15)),
    Days("1W * *", near(1)),
    Days("31W * *", near(31)),
    Days("* jan,jul *", in_months(1, 7)),
    Days("* */3 *", in_months(1, 4, 7, 10)),
    Days("* 3-4 *", in_months(3, 4)),
    Days("* 11-3 *", in_months(11, 12, 1, 2, 3)),
    Days("* * 0", on_weekdays(0)),
    Days("* * 7", on_weekdays(0)),
    Days("? * SUN", on_weekdays(0)),
    Days("* * mon-fri", on_weekdays(1, 2, 3, 4, 5)),
    Days("* * sat,sun", on_weekdays(6, 0)),
    Days("* * fri-mon", on_weekdays(5, 6, 0, 1)),
    Days("* * */2", on_weekdays(0, 2, 4, 6)),
    Days("* 3,11 sun", both(in_months(3, 11), on_weekdays(0))),
    Days("13 * 5", either(on_days(13), on_weekdays(5))),
    Days("1-7 10 sat", both(in_months(10), either(on_days(*range(1, 8)), on_weekdays(6)))),
    Days("L * fri", either(last_day, on_weekdays(5))),
    Days("*/9 * mon", either(on_days(1, 10, 19, 28), on_weekdays(1))),
    Days("* * mon#1", nth_weekday(1, 1)),
    Days("* * 0#2", nth_weekday(0, 2)),
    Days("* 3,4,10,11 sun#1", both(in_months(3, 4, 10, 11), nth_weekday(0, 1))),
    Days("* * 5#3,5#5", nth_weekday(5, 3, 5)),
    Days("* * L0", last_weekday(0)),
    Days("* 3,10 l7", both(in_months(3, 10), last_weekday(0))),
    Days("* * L5", last_weekday(5)),
    Days("13 * L5", either(on_days(13), last_weekday(5))),
    Days("15W 3,10 sun", both(in_months(3, 10), either(near(15), on_weekdays(0)))),
    Days("1-3 * mon#1", either(on_days(1, 2, 3), nth_weekday(1, 1))),
]


class Grammar:
    """Expressions drawn at random, the same for the same seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def expression(self, dense=False, seconds=False):
        most = 24 * 60 if dense else 4 if seconds else 60
        while True:
            drawn = Expression(self.field(59), self.field(23), self.rng.choice(DAYS))
            if drawn.ticks_a_day <= most and (drawn.ticks_a_day > 500) == dense:
                return Expression(drawn.minute, drawn.hour, drawn.days, self.a_few(59) if seconds else None)

    def field(self, top):
        forms = self.any, self.every, self.every, self.one, self.one, self.a_few, self.span, self.steps, self.from_on
        return self.rng.choice(forms)(top)

    def any(self, top):
        return Field("*", frozenset(range(top + 1)), named=False)

    def every(self, top):
        step = self.rng.choice([step for step in (1, 2, 3, 4, 5, 6, 7, 10, 12, 15, 20, 24, 30, 60) if step <= top + 1])
        return Field(f"*/{step}", frozenset(range(0, top + 1, step)), named=False)

    def one(self, top):
        value = self.number(top)
        return Field(self.rng.choice([f"{value}", f"{value:02}"]), frozenset([value]))

    def a_few(self, top):
        values = [self.number(top) for _ in range(self.rng.randint(1, 3))]
        return Field(",".join(map(str, values)), frozenset(values))

    def span(self, top):
        low, high = self.bounds(top)
        value = self.number(top)
        return Field(f"{low}-{high},{value}", frozenset([*range(low, high + 1), value]))

    def steps(self, top):
        low, high = self.bounds(top)
        step = self.rng.randint(1, 9)
        return Field(f"{low}-{high}/{step}", frozenset(range(low, high + 1, step)))

    def from_on(self, top):
        low, step = self.number(top - 1), self.rng.randint(2, 20)
        return Field(f"{low}/{step}", frozenset(range(low, top + 1, step)))

    def bounds(self, top):
        return sorted(self.rng.sample(range(top + 1), 2))

    def number(self, top):
        """Often one of the first or the last: clocks are changed at night."""
        return self.rng.choice([self.rng.randint(0, top), self.rng.randint(0, 3), top])


def expressions(count, seed):
    """Nine of ten tick up to 60 times a day; the others have seconds, and two tick more than 500 times a day."""
    grammar = Grammar(seed)
    plain = [grammar.expression() for _ in range(count * 9 // 10 - 2)]
    dense = [grammar.expression(dense=True) for _ in range(2)]
    return plain + dense + [grammar.expression(seconds=True) for _ in range(count - len(plain) - 2)]


# The walk


class Year:
    """Some days of a local clock, minute by minute. Instants are seconds since 1970."""

    def __init__(self, zone, first, last):
        """From the first day until before the last one; a few days around them are walked, too."""
        self.zone = ZoneInfo(zone)
        self.after, self.until = (datetime.combine(day, time(), UTC) for day in (first, last))
        self.days = [first + number * DAY for number in range(-3, (last - first).days + 3)]
        self.matching = {}
        #: By the number of the local minute: when it is shown first, or the gap ends that it lies in; when it is shown
        #: again; and which ones are never shown.
        self.once, self.again, self.skipped = array("q"), {}, set()
        self.walk()

    def walk(self):
        midnight = datetime.combine(self.days[0], time())
        for number in range(len(self.days) * MINUTES):
            first, second = self.instants(midnight + number * MINUTE)
            self.once.append(first)
            if first < second:
                self.again[number] = second
            elif first > second:
                self.skipped.add(number)
        for number in sorted(self.skipped, reverse=True):
            self.once[number] = self.once[number + 1]

    def instants(self, reading):
        """By the offset for either fold: the same twice, unless the time is repeated (rising) or skipped (falling)."""
        shown = (reading - EPOCH) // SECOND
        local = reading.replace(tzinfo=self.zone)
        before, after = local.utcoffset(), local.replace(fold=1).utcoffset()
        first = shown - before // SECOND
        return first, first if before == after else shown - after // SECOND

    def expected(self, expression):
        """The instants of all ticks in (after, until]."""
        minutes = [day * MINUTES + minute for day in self.matches(expression.days) for minute in expression.minutes]
        walked = self.by_second(minutes, expression.second.values) if expression.second else self.by_minute(minutes)
        once, again, skipped = walked
        found = sorted(set(once + skipped) if expression.wall_clock else once + again)
        after, until = self.after.timestamp(), self.until.timestamp()
        return found[bisect_right(found, after) : bisect_right(found, until)]

    def matches(self, days):
        """The numbers of the days that match."""
        if days.text not in self.matching:
            self.matching[days.text] = [number for number, day in enumerate(self.days) if days.match(day)]
        return self.matching[days.text]

    def by_minute(self, minutes):
        once = [self.once[number] for number in minutes if number not in self.skipped]
        again = [self.again[number] for number in minutes if number in self.again]
        return once, again, [self.once[number] for number in minutes if number in self.skipped]

    def by_second(self, minutes, seconds):
        """Each second is looked up by itself. Gaps end on a minute."""
        midnight = datetime.combine(self.days[0], time())
        once, again, skipped = [], [], []
        for number in minutes:
            for second in seconds:
                first, later = self.instants(midnight + number * MINUTE + second * SECOND)
                if first > later:
                    skipped.append(self.once[number])
                    continue
                once.append(first)
                if first < later:
                    again.append(later)
        return once, again, skipped
