"""How long messages waited and ran, by task and by queue, from what the history has of the last hour, day or week."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from delayedq.core.instants import microseconds
from delayedq.models import FinishedMessage
from delayedq.operations.sizing import read_bounded
from delayedq.store import operator_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from typing import Any

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample
    from delayedq.operations.figures import Span
    from delayedq.store.base import Store
    from delayedq.store.figures import Durations

#: At most this many tasks, and queues, are told.
MOST = 50


@dataclass(frozen=True, slots=True)
class DurationFigures:
    """`one_in`: N if one of N messages was read and the counts are estimates; 1.0 if they are exact.

    `span`: of time, from which rates follow.
    """

    tasks: Sequence[Durations]
    queues: Sequence[Durations]
    one_in: float
    span: timedelta


def durations(store: Store, span: Span, now: datetime | None = None) -> DurationFigures:
    """Waits and runs of what ended in a span until now. Reads a bounded number of rows: of large tables, a sample."""
    grid = span.grid(now or store.now())
    stored = operator_store(store.alias).figures
    part, tasks = read_bounded(
        _ended(store, grid.start, grid.end),
        (microseconds(grid.start), microseconds(grid.end)),
        read=partial(stored.durations, limit=MOST, by_queue=False),
        size=lambda found: sum(one.ended for one in found),
    )
    queues = stored.durations(part, MOST, by_queue=True)
    return DurationFigures(_scaled(tasks, part), _scaled(queues, part), part.scale, (now or store.now()) - grid.start)


def _scaled(found: Sequence[Durations], part: Sample) -> list[Durations]:
    return [one._replace(ended=part.estimate(one.ended), failed=part.estimate(one.failed)) for one in found]


def _ended(store: Store, start: datetime, end: datetime) -> QuerySet[Any]:
    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__gte=start, finished_at__lt=end)
    return rows.order_by("finished_at").values_list("finished_at")
