"""What the dashboard counts, by bucket, in the slices of a sample: see `core.sampling`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction

from delayedq.core.instants import instant
from delayedq.store.figures_sql import CREATED_ENDED, CREATED_LIVE, DEAD, ENDED, FALLING_DUE, PREPARE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.core.sampling import Sample

__all__ = ["CREATED_LIVE", "FALLING_DUE", "Ended", "Grid", "came_and_ended", "counts", "dead", "ended"]


class Grid(NamedTuple):
    """Buckets of `width` seconds, from `start` (on a whole second) until `end`, which is not included."""

    start: datetime
    end: datetime
    width: int


class Ended(NamedTuple):
    """How many messages of the sample ended in a bucket, and how late they had started: seconds after they were due.

    The latencies are None if none had started.
    """

    bucket: int
    ended: int
    failed: int
    p50: float | None
    p95: float | None


def ended(alias: str, grid: Grid, times: Sample) -> list[Ended]:
    """The sample is of `finished_at`, in microseconds since the epoch."""
    return [Ended(*row) for row in _rows(alias, ENDED, grid, _instants(alias, times))]


def came_and_ended(alias: str, grid: Grid, times: Sample) -> dict[int, int]:
    """How many of the same messages were created in each bucket."""
    return dict(_rows(alias, CREATED_ENDED, grid, _instants(alias, times)))


def dead(alias: str, grid: Grid, times: Sample) -> dict[int, int]:
    """How many dead letters, by bucket: from their own index, which MySQL does not have. The sample is as above."""
    return dict(_rows(alias, DEAD, grid, _instants(alias, times)))


def _instants(alias: str, times: Sample) -> list[list[str]]:
    adapt = connections[alias].ops.adapt_datetimefield_value
    return [[str(adapt(instant(end))) for end in part] for part in times.slices]


def counts(alias: str, statement: Mapping[str, str], grid: Grid, ids: Sample) -> dict[int, int]:
    """How many live messages a statement finds among these ids, by bucket."""
    return dict(_rows(alias, statement, grid, ids.slices))


def _rows(alias: str, statements: Mapping[str, str], grid: Grid, slices: Any) -> list[Any]:
    connection = connections[alias]
    adapt = connection.ops.adapt_datetimefield_value
    parameters = {"slices": json.dumps(slices), "start": adapt(grid.start), "end": adapt(grid.end), "width": grid.width}
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        if prepare := PREPARE.get(connection.vendor):
            cursor.execute(prepare)
        cursor.execute(statements[connection.vendor], parameters)
        rows: list[Any] = cursor.fetchall()
    return rows
