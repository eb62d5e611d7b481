"""The queues: how many messages wait in each, since when, and how many ended lately."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from delayedq.backend import DelayedQBackend
from delayedq.compat import task_backends
from delayedq.models import FinishedMessage, Message, Outcome, PausedQueue, is_free
from delayedq.operations.counting import Count, estimated_each
from delayedq.operations.pauses import is_pausable
from delayedq.operations.reading import lanes_of
from delayedq.operations.workers import live_workers, serves
from delayedq.store import default_store, operator_store
from delayedq.store.operator import Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from delayedq.store.base import Store

#: Due and scheduled messages are counted up to MOST over all queues, but at least up to LEAST in each queue.
MOST, LEAST = 20_000, 100

#: Trends go back this far, or as far as the last MOST_ENDED ended messages if those are more recent.
BACK = timedelta(hours=1)

MOST_ENDED = 10_000

BUCKETS = 30


class Trend(NamedTuple):
    """The number of messages that ended in each of BUCKETS equal parts of a window, and of those that failed."""

    window: timedelta
    ended: list[int]
    failed: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue. `oldest`: the due time of the first message that is due; None if none is."""

    name: str
    is_pausable: bool
    paused: PausedQueue | None
    due: Count
    scheduled: Count
    oldest: datetime | None
    workers: int
    trend: Trend


class Queues:
    """The queues that have messages, had one end lately, or are paused. Only what is asked for is counted."""

    def __init__(self, store: Store, now: datetime) -> None:
        self._store, self._now = store, now
        self._lanes, self._workers, self._past = lanes_of(store), live_workers(store, now), trends(store, now)
        self.paused = {row.queue: row for row in PausedQueue.objects.using(store.alias).all()}
        self.names = sorted({*(lane.queue for lane in self._lanes), *self.paused, *self._past})

    def workers_of(self, name: str) -> int:
        """How many live workers serve it."""
        return sum(serves(worker, name) for worker in self._workers)

    def states(self, names: Sequence[str]) -> list[QueueState]:
        """Of these queues. Reads a bounded number of rows: a statement per 250 lanes, and one for all estimates."""
        window = next(iter(self._past.values())).window if self._past else BACK
        quiet = Trend(window, [0] * BUCKETS, [0] * BUCKETS)
        most = max(LEAST, MOST // (2 * max(len(names), 1)))
        lanes = [lane for lane in self._lanes if lane.queue in {*names}]
        waiting = operator_store(self._store.alias).at(self._now).waiting(lanes, most + 1)
        many = self._estimates(waiting, most)
        none = Waiting(0, 0, None)

        def state(name: str) -> QueueState:
            found = waiting.get(name, none)
            return QueueState(
                name=name,
                is_pausable=is_pausable(name),
                paused=self.paused.get(name),
                due=many.get((name, "due")) or Count(found.due, exact=True),
                scheduled=many.get((name, "scheduled")) or Count(found.scheduled, exact=True),
                oldest=found.oldest,
                workers=self.workers_of(name),
                trend=self._past.get(name, quiet),
            )

        return [state(name) for name in names]

    def _estimates(self, waiting: Mapping[str, Waiting], most: int) -> dict[tuple[str, str], Count]:
        """Of what was counted to more than `most`, the estimates, by queue and state."""
        messages, now = Message.objects.using(self._store.alias), self._now
        rows = {
            "due": messages.filter(is_free(now), scheduled_at__lte=now),
            "scheduled": messages.filter(scheduled_at__gt=now),
        }
        many = [(name, state) for name, one in waiting.items() for state in rows if getattr(one, state) > most]
        counts = estimated_each([rows[state].filter(queue=name) for name, state in many], most)
        return dict(zip(many, counts, strict=True))


def queue_states(store: Store, now: datetime) -> list[QueueState]:
    """All of them, by name."""
    queues = Queues(store, now)
    return queues.states(queues.names)


# Trends
def trends(store: Store, now: datetime) -> dict[str, Trend]:
    """The trends of the queues in which messages ended lately, by queue."""
    since = now - BACK
    ended = FinishedMessage.objects.using(store.alias).filter(finished_at__gt=since, finished_at__lte=now)
    rows = list(ended.order_by("-finished_at").values_list("queue", "finished_at", "outcome")[:MOST_ENDED])
    if len(rows) == MOST_ENDED:
        since = rows[-1][1]
    window = max(now - since, timedelta(seconds=1))
    counts: Counter[tuple[str, int, bool]] = Counter()
    for queue, finished_at, outcome in rows:
        counts[queue, _bucket(finished_at - since, window), outcome == Outcome.FAILED] += 1
    return {queue: _trend(counts, queue, window) for queue in {row[0] for row in rows}}


def _bucket(age: timedelta, window: timedelta) -> int:
    return min(BUCKETS - 1, age * BUCKETS // window)


def _trend(counts: Counter[tuple[str, int, bool]], queue: str, window: timedelta) -> Trend:
    failed = [counts[queue, bucket, True] for bucket in range(BUCKETS)]
    return Trend(window, [counts[queue, bucket, False] + failed[bucket] for bucket in range(BUCKETS)], failed)


# The databases that have the messages of the project's backends.


def all_databases() -> list[Store]:
    """The stores of all backends of TASKS that are delayedq's, each once; without one, that of the bare queues.

    Raises InvalidTaskBackend for a backend of TASKS that can't be made.
    """
    backends = (task_backends[name] for name in task_backends)
    found = {ours.store.alias: ours.store for ours in backends if isinstance(ours, DelayedQBackend)}
    return list(found.values()) or [default_store()]
