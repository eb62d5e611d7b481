"""Arrivals, ends, failures and start latency over the last hour, day or week."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from delayedq.core.instants import EPOCH, microseconds
from delayedq.models import FinishedMessage, Message
from delayedq.operations.sizing import ids_since, read_bounded
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample
    from delayedq.store.base import Store
    from delayedq.store.figures import Ended


#: Dead letters are counted in their index alone, which is cheaper: this many times MOST of them are read.
DEAD_TIMES = 4


class Span(Enum):
    """How far back, as (number of buckets, seconds per bucket)."""

    HOUR = (60, 60)
    DAY = (96, 900)
    WEEK = (168, 3600)

    def grid(self, now: datetime) -> Grid:
        """The buckets; the last one contains `now`."""
        buckets, width = self.value
        end = EPOCH + ((now - EPOCH) // timedelta(seconds=width) + 1) * timedelta(seconds=width)
        return Grid(end - timedelta(seconds=buckets * width), end, width)


class Bucket(NamedTuple):
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

    `failed_one_in`: the same for failed messages.
    """

    buckets: list[Bucket]
    one_in: float
    failed_one_in: float


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
    return Figures(buckets, one_in, failed_one_in)


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


def _ended(alias: str, grid: Grid) -> tuple[Sample, list[Ended]]:
    return read_bounded(
        _in_order(FinishedMessage.objects.using(alias).all(), grid),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(operator_store(alias).figures.ended, grid),
        size=lambda ends: sum(end.ended for end in ends),
    )


def _failed(alias: str, grid: Grid, sampled: Sample, ends: Sequence[Ended]) -> tuple[Counter[int], float]:
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


def _bucket(grid: Grid, number: int, arrived: int, failed: int, end: Ended | None, part: Sample) -> Bucket:
    start = (grid.start + number * timedelta(seconds=grid.width)).astimezone(UTC)
    if end is None:
        return Bucket(start, arrived, failed, failed, None, None)
    return Bucket(start, arrived, max(part.estimate(end.ended), failed), failed, end.p50, end.p95, end.limited_p95)
