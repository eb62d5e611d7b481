"""What goes on now: throughput, latency, busy threads, the backlog and when it will be empty, and what comes next.

All of it is read from the latest messages that ended, those that are due, and the worker registry, in a few bounded
statements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import batched
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.outlook import Outlook, Trend, outlook
from delayedq.cron.beat import SETTINGS
from delayedq.models import CronSchedule, FinishedMessage, Message, Outcome, is_free
from delayedq.operations.browsing import Selection, listed, scan_live
from delayedq.operations.counting import Count, bounded_rows, in_lanes, outside
from delayedq.operations.pauses import paused_now
from delayedq.operations.reading import lanes_of
from delayedq.operations.workers import AT_ONCE, known_running, live_workers, running_ids, serves
from delayedq.sql import waits
from delayedq.sql.states import MessageState
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import Worker
    from delayedq.operations.pauses import Paused
    from delayedq.store.base import Store

#: Looks so far back, or as far as the last MOST messages that ended, if those are more recent; in PARTS equal parts.
BACK, MOST, PARTS = timedelta(minutes=10), 2_000, 10

#: What is due is counted up to this number, and estimated beyond.
COUNTED = 10_000

#: So many queues and workers, the busiest first, and so many messages and ticks to come are told.
QUEUES, NEXT = 10, 5


class Utilisation(NamedTuple):
    """Of one worker, or of the workers that serve one queue. `busy`: threads at the last heartbeat; `average`: over the
    window, None for a worker.
    """

    name: str
    threads: int
    busy: int
    average: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """`window`: seconds that were looked at. `due`: what waits of queues and tasks that are not paused. Latencies in
    seconds, None if nothing started. `average`: busy threads over the window; what runs still has run since its claim.

    `workers` and `queues`: the busiest, of so many in all (`of_workers`, `of_queues`). `is_whole`: all that runs was
    looked up; else `average` and the threads of queues are lower bounds.
    """

    window: float
    ended: int
    failed: int
    p50: float | None
    p95: float | None
    due: Count
    outlook: Outlook
    threads: int
    busy: int
    average: float
    workers: list[Utilisation] = field(default_factory=list)
    queues: list[Utilisation] = field(default_factory=list)
    of_workers: int = 0
    of_queues: int = 0
    is_whole: bool = True


class Ended(NamedTuple):
    """A message that ended."""

    queue: str
    kind: str
    outcome: str
    due_at: datetime
    started_at: datetime | None
    ended_at: datetime

    def busy(self, since: datetime) -> float:
        """Seconds for which its last attempt ran in the window."""
        if self.started_at is None:
            return 0.0
        return max(0.0, (self.ended_at - max(self.started_at, since)).total_seconds())


def activity(store: Store, now: datetime) -> Activity:
    """Reads at most MOST rows that ended and MOST that fell due, and counts up to COUNTED. Raises django.db.Error."""
    rows, since = _ended(store, now)
    window = max(1.0, (now - since).total_seconds())
    tasks = [row for row in rows if BARE not in row.queue]
    late = sorted(
        one for row in tasks if row.started_at and (one := waits.waited(row.due_at, row.started_at)) is not None
    )
    workers = live_workers(store, now)
    due, coming = _backlog(store, now, since, tasks)
    seconds: defaultdict[str, float] = defaultdict(float)
    for row in tasks:
        seconds[row.queue] += row.busy(since)
    running, is_whole = _running(store, workers)
    for queue, claimed_at in running:
        seconds[queue] += max(0.0, (now - max(claimed_at or now, since)).total_seconds())
    busy = Counter(queue for queue, _ in running)
    return Activity(
        window,
        len(rows),
        sum(row.outcome == Outcome.FAILED for row in rows),
        _part(late, 0.5),
        _part(late, 0.95),
        due,
        coming,
        sum(worker.threads for worker in workers),
        sum(len(running_ids(worker)) for worker in workers),
        sum(seconds.values()) / window,
        _by_worker(workers),
        _by_queue(workers, busy, seconds, window),
        len(workers),
        len({*busy, *seconds}),
        is_whole,
    )


def _ended(store: Store, now: datetime) -> tuple[list[Ended], datetime]:
    """Those that ended lately, the last first, and since when all are among them."""
    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__gt=now - BACK, finished_at__lte=now)
    columns = ("queue", "kind", "outcome", "scheduled_at", "started_at", "finished_at")
    found = [Ended(*row) for row in rows.order_by("-finished_at").values_list(*columns)[:MOST]]
    since = now - BACK if len(found) < MOST else found[-1].ended_at
    return [row for row in found if row.outcome != Outcome.SUPERSEDED], since


def _part(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# The backlog


def _backlog(store: Store, now: datetime, since: datetime, ended: Sequence[Ended]) -> tuple[Count, Outlook]:
    """What is due of tasks that are not paused, and when it will be empty."""
    paused = paused_now(store)
    waiting, planned = _waiting(store, now, paused)
    due = bounded_rows(waiting.filter(is_free(now)), COUNTED, planned.filter(is_free(now)))
    if not due.number:
        return due, Outlook(Trend.EMPTY)
    width = max(1e-6, (now - since).total_seconds() / PARTS)
    lately = list(waiting.filter(scheduled_at__gt=since).values_list("scheduled_at", flat=True)[: MOST + 1])
    if len(lately) > MOST:  # more than ended in the same time
        return due, Outlook(Trend.STAYS)
    left = [row for row in ended if row.due_at <= row.ended_at and not paused.has(row.queue, row.kind)]
    came = [*lately, *(row.due_at for row in left if row.due_at > since)]

    def parts(moments: Sequence[datetime]) -> list[int]:
        found = Counter(min(PARTS - 1, int((moment - since).total_seconds() / width)) for moment in moments)
        return [found[part] for part in range(PARTS)]

    return due, outlook(due.number, parts([row.ended_at for row in left]), parts(came), width)


def _waiting(store: Store, now: datetime, paused: Paused) -> tuple[QuerySet[Message], QuerySet[Message]]:
    """What is due or runs: by the index of what is due, and as the planner estimates it well."""
    known = lanes_of(store)
    lanes = [lane for lane in known if BARE not in lane.queue and lane.queue not in paused.queues]
    others = {lane.queue for lane in known} - {lane.queue for lane in lanes}
    rows, planned = (each.filter(scheduled_at__lte=now) for each in (in_lanes(store, lanes), outside(store, others)))
    if not paused.kinds:
        return rows, planned
    return rows.exclude(kind__in=paused.kinds), planned.exclude(kind__in=paused.kinds)


# Threads


def _running(store: Store, workers: Sequence[Worker]) -> tuple[list[tuple[str, datetime | None]], bool]:
    """Of each message that workers ran at their last heartbeat: its queue, and when it was claimed; whether these are
    all.
    """
    ids, are_all = known_running(workers)
    rows = Message.objects.using(store.alias).values_list("queue", "claimed_at")
    return [row for some in batched(ids, AT_ONCE) for row in rows.filter(id__in=some)], are_all


def _by_worker(workers: Sequence[Worker]) -> list[Utilisation]:
    """Those of whose threads the largest share is busy."""
    found = [Utilisation(worker.name, worker.threads, len(running_ids(worker))) for worker in workers]
    return sorted(found, key=lambda one: (-one.busy / max(one.threads, 1), one.name))[:QUEUES]


def _by_queue(
    workers: Sequence[Worker], busy: Counter[str], seconds: Mapping[str, float], window: float
) -> list[Utilisation]:
    names = sorted({*busy, *seconds}, key=lambda name: (-busy[name], -seconds.get(name, 0.0), name))
    return [
        Utilisation(
            name,
            sum(worker.threads for worker in workers if serves(worker, name)),
            busy[name],
            seconds.get(name, 0.0) / window,
        )
        for name in names[:QUEUES]
    ]


# What comes next


def next_messages(store: Store, now: datetime) -> list[Message]:
    """The messages that fall due next."""
    found = scan_live(store, Selection(as_of=now, state=MessageState.SCHEDULED), None, NEXT).found[:NEXT]
    rows = listed(Message.objects.using(store.alias)).in_bulk([position.id for position in found])
    return [rows[position.id] for position in found if position.id in rows]


def next_ticks(store: Store, now: datetime) -> list[tuple[datetime, str]]:
    """The next ticks of schedules whose messages are not placed yet, and the names of the schedules."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, disabled_at=None, retired_at=None)
    found = rows.filter(next_at__gt=now).order_by("next_at", "name").values_list("next_at", "name")[:NEXT]
    return [(at, name) for at, name in found if at is not None]
