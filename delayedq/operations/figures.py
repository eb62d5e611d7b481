"""Arrivals, ends, failures and start latency over the last hour, day or week."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models.functions import Mod
from django.utils import timezone

from delayedq.core.instants import microseconds
from delayedq.core.serialization import loads
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import definitions, read_stored
from delayedq.cron.expressions import ticks
from delayedq.exceptions import DelayedQError
from delayedq.limits.operator import OVERDUE, LimitsAhead, limits_ahead
from delayedq.models import CronSchedule, FinishedMessage, Message
from delayedq.operations.counting import ids_since, in_lanes, read_bounded
from delayedq.operations.reading import lanes_of
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample
    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store
    from delayedq.store.figures import Durations, EndedCount
    from delayedq.store.protocol import Lane

#: Dead letters are counted in their index alone, which is cheaper: this many times MOST of them are read.
DEAD_TIMES = 4


class Span(Enum):
    """How far back, as (number of buckets, seconds per bucket)."""

    HOUR = (60, 60)
    DAY = (96, 900)
    WEEK = (168, 3600)

    def grid(self, now: datetime) -> Grid:
        """The buckets; the last one contains `now`."""
        return Grid.around(now, *self.value)


class TimeBucket(NamedTuple):
    """Counts of the time from `start` on. Latencies in seconds, None if nothing that ended in it had started.

    `limited_p95`: of messages with a channel, which may have waited for a limit; `p50` and `p95` are of the others.
    """

    start: datetime
    arrived: int
    ended: int
    failed: int
    p50: float | None
    p95: float | None
    limited_p95: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """`one_in`: N if one of N messages was read and the counts are estimates; 1.0 if they are exact.

    `failed_one_in`: the same for failed messages. `ended`: the sample of ended messages that was read.
    """

    buckets: list[TimeBucket]
    one_in: float
    failed_one_in: float
    ended: Sample


def figures(store: Store, span: Span, now: datetime | None = None, **only: str) -> Figures:
    """The figures of a span that ends now. Reads a bounded number of rows; of large tables, a sample.

    `only`: `kind` and `queue`, of which task and which queue; they are sought among the rows that are read anyway.
    """
    grid, stored = span.grid(now or store.now()), operator_store(store.alias).figures
    part, ends = _ended(store.alias, grid)
    arrived, one_in = _arrived(store.alias, grid, part, only)
    if only:
        ends = stored.of(**only).ended(grid, part)
        failed, failed_one_in = Counter({end.bucket: part.estimate(end.failed) for end in ends}), part.scale
    else:
        failed, failed_one_in = _failed(store.alias, grid, part, ends)
    found = {end.bucket: end for end in ends}
    buckets = [
        _bucket(grid, number, arrived[number], failed[number], found.get(number), part)
        for number in range(span.value[0])
    ]
    return Figures(buckets, one_in, failed_one_in, part)


def _arrived(alias: str, grid: Grid, ended_part: Sample, only: dict[str, str]) -> tuple[Counter[int], float]:
    """Arrivals by bucket: live messages, and those that have ended since, from the sample of the ended ones."""
    every = operator_store(alias).figures
    stored = every.of(**only)
    arrived = Counter(
        {bucket: ended_part.estimate(count) for bucket, count in stored.came_and_ended(grid, ended_part).items()}
    )
    rows = Message.objects.using(alias).all()
    part, living = count_ids(rows, ids_since(rows, grid.start), partial(every.created, grid))
    if only:
        living = {bucket: part.estimate(number) for bucket, number in stored.created(grid, part).items()}
    arrived.update(living)
    return arrived, max(part.scale, ended_part.scale)


def count_ids(
    rows: QuerySet[Any], ids: tuple[int, int], count: Callable[[Sample], dict[int, int]]
) -> tuple[Sample, dict[int, int]]:
    """Count by bucket what a statement finds in a range of ids (from, up to), or estimate it from a sample."""
    part, found = read_bounded(
        rows.filter(id__gte=ids[0], id__lt=ids[1]).order_by("id").values_list("id"),
        ids,
        read=count,
        size=lambda found: sum(found.values()),
    )
    return part, {bucket: part.estimate(count) for bucket, count in found.items()}


def _ended(alias: str, grid: Grid) -> tuple[Sample, list[EndedCount]]:
    return read_bounded(
        _in_order(FinishedMessage.objects.using(alias).all(), grid),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(operator_store(alias).figures.ended, grid),
        size=lambda ends: sum(end.ended for end in ends),
    )


def _failed(alias: str, grid: Grid, sampled: Sample, ends: Sequence[EndedCount]) -> tuple[Counter[int], float]:
    """Failures by bucket, from the index of the dead letters; on a database without it, from the sample."""
    if not connections[alias].features.supports_partial_indexes:
        return Counter({end.bucket: sampled.estimate(end.failed) for end in ends}), sampled.scale
    part, found = read_bounded(
        _in_order(FinishedMessage.objects.using(alias).failed(), grid),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(operator_store(alias).figures.dead, grid),
        size=lambda found: sum(found.values()),
        times=DEAD_TIMES,
    )
    return Counter({bucket: part.estimate(count) for bucket, count in found.items()}), part.scale


def _in_order(rows: QuerySet[FinishedMessage], grid: Grid) -> QuerySet[Any]:
    return (
        rows.filter(finished_at__gte=grid.start, finished_at__lt=grid.end)
        .order_by("finished_at")
        .values_list("finished_at")
    )


def _bucket(grid: Grid, number: int, arrived: int, failed: int, end: EndedCount | None, part: Sample) -> TimeBucket:
    start = grid.start_of(number)
    if end is None:
        return TimeBucket(start, arrived, failed, failed, None, None)
    return TimeBucket(start, arrived, max(part.estimate(end.ended), failed), failed, end.p50, end.p95, end.limited_p95)


# How long messages waited and ran, by task and by queue, from what the history has of the last hour, day or week.


#: At most this many tasks, and queues, are told.
MOST = 10_000
#: What is read of a span, as a multiple of what other pages read: as usual, and on request.
USUAL, THOROUGH = 1, 100


@dataclass(frozen=True, slots=True)
class DurationFigures:
    """`one_in`: N if one of N messages was read and the counts are estimates; 1.0 if they are exact.

    `span`: of time, from which rates follow.
    """

    tasks: Sequence[Durations]
    queues: Sequence[Durations]
    one_in: float
    span: timedelta


def durations(store: Store, span: Span, now: datetime | None = None, *, times: int = USUAL) -> DurationFigures:
    """Waits and runs of what ended in a span until now. Reads a bounded number of rows: of large tables, a sample,
    which may have none of a task that runs rarely, and not the longest run.

    times: USUAL, or THOROUGH, which reads up to 3 million rows.
    """
    grid = span.grid(now or store.now())
    stored = operator_store(store.alias).figures
    part, tasks = read_bounded(
        ended_between(store, grid.start, grid.end),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(stored.durations, limit=MOST, by_queue=False),
        size=lambda found: found[0].of_all if found else 0,
        times=times,
    )
    queues = stored.durations(part, MOST, by_queue=True)
    return DurationFigures(_scaled(tasks, part), _scaled(queues, part), part.scale, (now or store.now()) - grid.start)


def durations_of(store: Store, kind: str, ended: Sample) -> Durations | None:
    """The waits and runs of one task in a sample of ended messages; None if it has none of them. One statement."""
    found = operator_store(store.alias).figures.of(kind=kind).durations(ended, 1, by_queue=False)
    return _scaled(found, ended)[0] if found else None


def _scaled(found: Sequence[Durations], part: Sample) -> list[Durations]:
    return [one._replace(ended=part.estimate(one.ended), failed=part.estimate(one.failed)) for one in found]


def ended_between(store: Store, start: datetime, end: datetime) -> QuerySet[Any]:
    """The times at which messages ended, in the order of their index."""
    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__gte=start, finished_at__lt=end)
    return rows.order_by("finished_at").values_list("finished_at")


# How many messages fall due in each minute of the next day or week: live messages, and ticks of schedules.


MINUTE = timedelta(minutes=1)

#: A minute is a stampede with at least STAMPEDE messages and at least STAMPEDE_TIMES the average of a minute.
STAMPEDE, STAMPEDE_TIMES = 100, 10

#: If a sample was read, so many of the likeliest stampedes are counted, each up to so many messages.
CHECKED, COUNTED = 20, 10_000

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
    coming = _DueCounts(moment, first, ahead)
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
class _DueCounts:
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


def _count_ticks(alias: str, coming: _DueCounts) -> int:
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


def stampedes(
    minutes: Sequence[Minute], counted: Callable[[Sequence[Minute]], list[Minute]] | None = None
) -> list[Minute]:
    """The minutes in which far more messages fall due than on average, the largest first.

    counted: makes exact what is known by a sample; None: `minutes` are exact.
    """
    mean = sum(minute.due for minute in minutes) / max(len(minutes), 1)

    def chosen(among: Sequence[Minute]) -> list[Minute]:
        found = [minute for minute in among if minute.due >= max(STAMPEDE, STAMPEDE_TIMES * mean)]
        return sorted(found, key=lambda minute: -minute.due)

    return chosen(minutes) if counted is None else chosen(counted(chosen(minutes)))


def stampedes_in(store: Store, found: Forecast) -> list[Minute]:
    """Those of a forecast. Of a sample, the likeliest are counted, and the others left out.

    A sample has slices of ids: of messages that were made in the order in which they are due, a slice meets all of one
    minute and none of the next ones, which seems to be a stampede.
    """
    if found.one_in == 1:
        return stampedes(found.minutes)
    lanes = lanes_of(store)
    return stampedes(found.minutes, lambda likely: [_counted(store, lanes, one) for one in likely[:CHECKED]])


def _counted(store: Store, lanes: list[Lane], minute: Minute) -> Minute:
    rows = in_lanes(store, lanes).filter(scheduled_at__gte=minute.start, scheduled_at__lt=minute.start + MINUTE)
    number = rows[:COUNTED].count()
    return minute._replace(waiting=number if number < COUNTED else max(number, minute.waiting))
