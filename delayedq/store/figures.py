"""What the dashboard counts, by bucket, in the slices of a sample: see `core.sampling`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.core.instants import instant
from delayedq.store import figures_sql as sql

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.core.sampling import Sample
    from delayedq.store.database import Database


class Grid(NamedTuple):
    """Buckets of `width` seconds, from `start` (on a whole second) until `end`, which is not included."""

    start: datetime
    end: datetime
    width: int


class Ended(NamedTuple):
    """How many messages of the sample ended in a bucket, and how late they had started: seconds after they were due.

    The latencies are None if none had started. `limited_p95`: of those with a channel, which the others are without.
    """

    bucket: int
    ended: int
    failed: int
    p50: float | None
    p95: float | None
    limited_p95: float | None


class Durations(NamedTuple):
    """Of the messages of a sample that are of one task, or queue: how many ended, how many of them failed, and in
    seconds how long they waited from due to the start of their last attempt, and how long that ran.

    The durations are None if none had started.
    """

    name: str
    ended: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    slowest: float | None


class WaitingInChannel(NamedTuple):
    """How many messages of a channel fall due in a bucket, by the ids of the channel and its group."""

    group: int
    channel: int
    bucket: int
    number: int


class Figures:
    """Of one database. A sample is of `finished_at`, in microseconds since the epoch, or of ids."""

    def __init__(self, database: Database, only: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._only = only or {}

    def of(self, **only: str) -> Self:
        """Those of one task (`kind`), one `queue`, or both; but `dead`, `durations` and what falls due are of all."""
        return type(self)(self._database, only)

    def ended(self, grid: Grid, times: Sample) -> list[Ended]:
        return [Ended(*row) for row in self._rows(sql.ENDED, grid, self._instants(times))]

    def durations(self, times: Sample, limit: int, *, by_queue: bool) -> list[Durations]:
        """By task, or by queue: those of which most ended, at most `limit`."""
        statement = sql.DURATIONS_OF_QUEUES if by_queue else sql.DURATIONS_OF_TASKS
        return [Durations(*row) for row in self._counted(statement, self._instants(times), limit=limit)]

    def came_and_ended(self, grid: Grid, times: Sample) -> dict[int, int]:
        """How many of the same messages were created in each bucket."""
        return dict(self._rows(sql.CREATED_ENDED, grid, self._instants(times)))

    def dead(self, grid: Grid, times: Sample) -> dict[int, int]:
        """How many dead letters, by bucket: from their own index, which MySQL does not have."""
        return dict(self._rows(sql.DEAD, grid, self._instants(times)))

    def created(self, grid: Grid, ids: Sample) -> dict[int, int]:
        """How many live messages with these ids were created, by bucket."""
        return dict(self._rows(sql.CREATED_LIVE, grid, ids.slices))

    def falling_due(self, grid: Grid, ids: Sample) -> dict[int, int]:
        """How many live messages with these ids fall due, by bucket; -1 has what is overdue."""
        return dict(self._rows(sql.FALLING_DUE, grid, ids.slices))

    def waiting_in_channels(self, grid: Grid, ids: Sample) -> list[WaitingInChannel]:
        """How many messages with these ids wait in each channel and fall due, by bucket; -1 has what is overdue."""
        return [WaitingInChannel(*row) for row in self._rows(sql.WAITING_IN_CHANNELS, grid, ids.slices)]

    def _instants(self, times: Sample) -> list[list[str]]:
        stored = self._database.dialect.stored
        return [[str(stored(instant(end))) for end in part] for part in times.slices]

    def _rows(self, template: str, grid: Grid, slices: Any) -> list[Any]:
        stored = self._database.dialect.stored
        return self._counted(template, slices, start=stored(grid.start), end=stored(grid.end), width=grid.width)

    def _counted(self, template: str, slices: Any, **parameters: Any) -> list[Any]:
        statement = sql.in_words(template, self._database.dialect, self._only)
        return self._database.counted(statement, {"slices": json.dumps(slices), **self._only, **parameters})
