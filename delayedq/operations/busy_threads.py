"""How many threads were busy over the last hour, day or week, by queue and by worker, from what the history has.

It has the last attempt of each message that ended. Earlier attempts, and what still runs, are not in it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.instants import microseconds
from delayedq.operations.counting import read_bounded
from delayedq.operations.figures import ended_between
from delayedq.operations.workers import live_workers, serves
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from delayedq.models import Worker
    from delayedq.store.base import Store
    from delayedq.store.figures import Busy

#: So many queues and workers are told one by one, the busiest first.
SHOWN = 20


class BusySpan(Enum):
    """How far back, as (number of buckets, seconds per bucket)."""

    HOUR = (12, 300)
    DAY = (24, 3600)
    WEEK = (28, 21_600)

    def grid(self, now: datetime) -> Grid:
        """The buckets; the last one contains `now`."""
        return Grid.around(now, *self.value)


class BusyRow(NamedTuple):
    """Busy threads on average, over all and in each bucket.

    `threads`: how many there are now: those of the workers that serve a queue; None for a worker that is not alive.
    `number`: how many queues or workers it is of.
    """

    name: str
    average: float
    buckets: Sequence[float]
    threads: int | None = None
    number: int = 1


@dataclass(frozen=True, slots=True)
class BusyThreads:
    """`starts`: of the buckets. `elapsed`: from the first of them until now. `one_in`: as in `figures.Figures`.

    `other_queues`, `other_workers`: the sum of those beyond SHOWN.
    """

    starts: Sequence[datetime]
    elapsed: timedelta
    all: BusyRow
    queues: Sequence[BusyRow]
    other_queues: BusyRow
    workers: Sequence[BusyRow]
    other_workers: BusyRow
    one_in: float


def busy_threads(store: Store, span: BusySpan, now: datetime | None = None) -> BusyThreads:
    """Reads a bounded number of rows: of large tables, a sample. Bare queues, which no worker serves, are left out."""
    now = now or store.now()
    grid, figures = span.grid(now), operator_store(store.alias).figures
    part, of_queues = read_bounded(
        ended_between(store, grid.start, grid.end),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(figures.busy, grid, by_worker=False),
        size=lambda found: sum(one.number for one in found),
    )
    of_workers = figures.busy(grid, part, by_worker=True)
    workers, widths = live_workers(store, now), _widths(grid, now)
    alive = {worker.name: worker.threads for worker in workers}
    queues = _rows(of_queues, part.scale, grid, widths, lambda name: _serving(workers, name))
    by_worker = _rows(of_workers, part.scale, grid, widths, alive.get)
    return BusyThreads(
        [grid.start_of(number) for number in range(len(widths))],
        now - grid.start,
        _sum(queues, widths)._replace(threads=sum(alive.values())),
        queues[:SHOWN],
        _sum(queues[SHOWN:], widths),
        by_worker[:SHOWN],
        _sum(by_worker[SHOWN:], widths),
        part.scale,
    )


def _widths(grid: Grid, now: datetime) -> list[float]:
    """The seconds of each bucket that have passed."""
    buckets = int((grid.end - grid.start).total_seconds()) // grid.width
    passed = (now - grid.start).total_seconds() - (buckets - 1) * grid.width
    return [float(grid.width)] * (buckets - 1) + [max(1.0, passed)]


def _rows(
    found: Iterable[Busy],
    scale: float,
    grid: Grid,
    widths: Sequence[float],
    threads: Callable[[str], int | None],
) -> list[BusyRow]:
    """The busiest first. scale: one in how many messages was read."""
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(widths))
    for one in found:
        if one.name and one.began_in is not None:
            for bucket, busy in _divided(one, one.began_in, grid.width):
                seconds[one.name][bucket] += busy * scale
    rows = [
        BusyRow(
            name,
            sum(parts) / sum(widths),
            [busy / width for busy, width in zip(parts, widths, strict=True)],
            threads(name),
        )
        for name, parts in seconds.items()
    ]
    return sorted(rows, key=lambda row: (-row.average, row.name))


def _divided(one: Busy, first: int, width: int) -> Iterator[tuple[int, float]]:
    """Buckets, and for how many seconds threads were busy with these attempts in each."""
    if first >= one.ended_in:
        yield one.ended_in, max(0.0, one.ended - one.began)  # not below 0 by rounding
        return
    yield first, one.number * (first + 1) * width - one.began
    for bucket in range(first + 1, one.ended_in):
        yield bucket, float(one.number * width)
    yield one.ended_in, one.ended - one.number * one.ended_in * width


def _sum(rows: Sequence[BusyRow], widths: Sequence[float]) -> BusyRow:
    buckets = [sum(row.buckets[number] for row in rows) for number in range(len(widths))]
    return BusyRow("", sum(row.average for row in rows), buckets, None, len(rows))


def _serving(workers: Iterable[Worker], queue: str) -> int:
    return sum(worker.threads for worker in workers if serves(worker, queue))
