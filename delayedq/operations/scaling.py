"""What is asked of the workers of a database: a bounded read, however much waits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.core.channels import is_limited
from delayedq.core.scaling import Demand
from delayedq.models import FinishedMessage, Message, PausedTask, is_free
from delayedq.operations.counting import bounded_rows
from delayedq.operations.workers import live_workers
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import LaneHead

#: Arrivals are counted over this time, and run times averaged over the last MOST messages of an hour.
WINDOW, HISTORY, MOST = timedelta(minutes=1), timedelta(hours=1), 1_000
#: What is due is counted up to this number, and estimated beyond.
COUNTED = 10_000

#: When a message was due, started and ended.
Times = tuple["datetime", "datetime", "datetime"]


def demand(store: Store, serves: Callable[[str], bool] = lambda _: True) -> Demand:
    """Of the queues of tasks that are served. Raises django.db.Error."""
    now = store.now()
    held = sum(worker.held for worker in live_workers(store, now))
    return demand_of(store, [one for one in store.scan() if serves(one.queue)], held, now, serves)


def demand_of(
    store: Store, heads: Iterable[LaneHead], held: int, now: datetime, serves: Callable[[str], bool] = lambda _: True
) -> Demand:
    """The same from what a scan has found, and how many messages workers hold."""
    first = [one for one in heads if one.due_in <= 0 and _counts(one)]
    due = _due(store, first, now)
    came = bounded_rows(due.filter(scheduled_at__gt=now - WINDOW), COUNTED).number
    ended = _ended(store, now, serves)
    runs = [(finished - started).total_seconds() for _, started, finished in ended]
    return Demand(
        oldest_due=max((-one.due_in for one in first), default=0.0),
        due=bounded_rows(due, COUNTED).number,
        arrivals=came / WINDOW.total_seconds() + _rate(ended, now),
        run_seconds=max(0.0, sum(runs) / len(runs)) if runs else 0.0,
        running=held,
    )


def _due(store: Store, heads: Iterable[LaneHead], now: datetime) -> QuerySet[Message]:
    """What could be claimed in these lanes: in no other lane of their queues and priorities is anything due.

    Not what belongs to a paused task: more workers would not start it.
    """
    lanes = [(head.queue, head.priority) for head in heads]
    queues, priorities = {queue for queue, _ in lanes}, {priority for _, priority in lanes}
    rows = Message.objects.using(store.alias).filter(queue__in=queues, priority__in=priorities)
    paused = PausedTask.objects.using(store.alias).values("kind")
    return rows.filter(is_free(now), scheduled_at__lte=now).exclude(kind__in=paused)


def _counts(head: LaneHead) -> bool:
    """Bare queues have no workers, and what waits for a limit would not start sooner with more."""
    return BARE not in head.queue and not is_limited(head.priority)


def _ended(store: Store, now: datetime, serves: Callable[[str], bool]) -> Sequence[Times]:
    """Of the last messages that ended, the last first."""
    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__gt=now - HISTORY).order_by("-finished_at")
    columns = rows.values_list("queue", "scheduled_at", "started_at", "finished_at")
    return [
        (due, started, finished)
        for queue, due, started, finished in columns[:MOST]
        if started and BARE not in queue and serves(queue)
    ]


def _rate(ended: Sequence[Times], now: datetime) -> float:
    """Messages per second that fell due in the window, and have ended."""
    if not ended:
        return 0.0
    window = min(now - ended[-1][2], WINDOW) if len(ended) >= MOST else WINDOW
    came = sum(1 for due, _, finished in ended if due > now - WINDOW and finished > now - window)
    return came / max(window.total_seconds(), 1.0)
