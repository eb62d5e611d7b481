"""How many messages fall due in each minute of the next day or week: live messages, and ticks of schedules."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from django.db.models.functions import Mod
from django.utils import timezone

from delayedq.core.cron import ticks
from delayedq.core.serialization import loads
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import definitions, read_stored
from delayedq.exceptions import DelayedQError
from delayedq.models import CronSchedule, Message
from delayedq.operations.figures import count_ids
from delayedq.operations.limits_ahead import OVERDUE, LimitsAhead, limits_ahead
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store

MINUTE = timedelta(minutes=1)

#: A minute is a stampede with at least STAMPEDE messages and at least STAMPEDE_TIMES the average of a minute.
STAMPEDE, STAMPEDE_TIMES = 100, 10
#: At most this many ticks of one schedule are counted (one per minute makes 10,080 in a week).
MOST_TICKS = 20_000
#: Of more schedules of the database than this, a sample is counted.
MOST_SCHEDULES = 1_000


class Ahead(Enum):
    """How far ahead, in minutes."""

    DAY = 24 * 60
    WEEK = 7 * 24 * 60


class Minute(NamedTuple):
    """What falls due in one minute. `waiting`: live messages; `cron`: ticks that are not placed yet."""

    start: datetime
    waiting: int
    cron: int

    @property
    def due(self) -> int:
        return self.waiting + self.cron


@dataclass(frozen=True, slots=True)
class Forecast:
    """`one_in`: as in `Figures`. `uncounted`: names of schedules with more than MOST_TICKS ticks, counted in part.

    Of the schedules of the database, one in `schedules_one_in` was counted, for all of them. `limited`: what waits for
    limits, which is not overdue; and until when limits hold back what waits and falls due.
    """

    minutes: list[Minute]
    overdue: int
    one_in: float
    uncounted: list[str]
    schedules_one_in: int
    limited: LimitsAhead = field(default_factory=LimitsAhead)

    @property
    def due(self) -> int:
        return sum(minute.due for minute in self.minutes)


def forecast(store: Store, ahead: Ahead, now: datetime | None = None) -> Forecast:
    """The forecast from the beginning of the current local hour; messages due before now count as overdue."""
    moment = (now or store.now()).replace(microsecond=0)
    local = timezone.localtime(moment)
    first = moment - timedelta(minutes=local.minute, seconds=local.second)
    grid = Grid(moment.replace(second=0), first + ahead.value * MINUTE, 60)
    one_in, waiting = _waiting(store.alias, grid)
    limited = limits_ahead(store, grid, moment)
    coming = _Coming(moment, first, ahead)
    schedules_one_in = _count_ticks(store.alias, coming)
    passed = (moment - first) // MINUTE
    minutes = [
        Minute(first + number * MINUTE, waiting[number - passed] if number >= passed else 0, coming.minutes[number])
        for number in range(ahead.value)
    ]
    overdue = max(0, waiting[OVERDUE] - limited.overdue)
    return Forecast(minutes, overdue, one_in, coming.uncounted, schedules_one_in, limited)


def _waiting(alias: str, grid: Grid) -> tuple[float, Counter[int]]:
    rows = Message.objects.using(alias).order_by("id")
    ids = rows.values_list("id", flat=True)
    first, last = ids.first(), ids.last()
    part, found = count_ids(
        rows, (first or 0, (last or 0) + 1), partial(operator_store(alias).figures.falling_due, grid)
    )
    return part.scale, Counter(found)


@dataclass(slots=True)
class _Coming:
    """Ticks that are not placed yet, by minute from `first` on."""

    now: datetime
    first: datetime
    ahead: Ahead
    minutes: Counter[int] = field(default_factory=Counter)
    uncounted: list[str] = field(default_factory=list)

    def add(self, definition: Definition, schedule: CronSchedule | None, weight: int = 1) -> None:
        after = _covered(definition, schedule, self.now)
        if after is None:
            return
        runs = definition.max_runs
        left = MOST_TICKS + 1 if runs is None else max(0, runs - (schedule.runs if schedule else 0))
        until = self.first + self.ahead.value * MINUTE - timedelta(seconds=1)
        coming = islice(ticks(definition.schedule, after, until), min(left, MOST_TICKS + 1))
        counted = [(tick - self.first) // MINUTE for tick in coming]
        for minute in counted:
            self.minutes[minute] += weight
        if len(counted) > MOST_TICKS:
            self.uncounted.append(definition.name)


def _count_ticks(alias: str, coming: _Coming) -> int:
    """Of the settings, and of the database: returns one in how many of these was counted.

    Schedules of bare queues are in neither.
    """
    rows = CronSchedule.objects.using(alias).filter(owner=SETTINGS)
    known = {row.name: row for row in rows.filter(definition=None)}
    for definition in definitions().values():
        coming.add(definition, known.get(definition.name))
    stored = rows.filter(definition__isnull=False, disabled_at=None)
    one_in = stored.count() // MOST_SCHEDULES + 1
    sample = stored.annotate(part=Mod("id", one_in)).filter(part=0) if one_in > 1 else stored
    for row in sample.iterator(MOST_SCHEDULES):
        with suppress(DelayedQError):  # its page says what is wrong
            coming.add(
                replace(read_stored(row.name, loads(row.definition or "")), config_hash=row.config_hash), row, one_in
            )
    return one_in


def _covered(definition: Definition, schedule: CronSchedule | None, now: datetime) -> datetime | None:
    """The time up to which the schedule's ticks are placed; None if it will have no more."""
    if not definition.enabled or (schedule and schedule.disabled_at):
        return None
    if schedule is None or schedule.config_hash != definition.config_hash:
        return now
    return max(now, schedule.covered_until)


def stampedes(minutes: Sequence[Minute]) -> list[Minute]:
    """The minutes in which far more messages fall due than on average, the largest first."""
    mean = sum(minute.due for minute in minutes) / max(len(minutes), 1)
    least = max(STAMPEDE, STAMPEDE_TIMES * mean)
    return sorted((minute for minute in minutes if minute.due >= least), key=lambda minute: -minute.due)
