"""How many messages are in each state: exact for a small queue, of a long one counted up to a bound or estimated."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from delayedq.models import Message, is_free, is_held
from delayedq.operations.browsing import scan_live
from delayedq.operations.counting import Count, bounded_rows, count_ended
from delayedq.operations.selecting import EndedSelection, Selection
from delayedq.operations.workers import live_workers
from delayedq.store.operator import State

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import Lane

#: Up to this many live messages are read one by one, which answers for all states at once.
FEW = 1_000
#: Of more, those that wait for another attempt are looked for among this many; no index has them.
LOOK = 2_000
PAUSED = "paused"


class StateCounts(NamedTuple):
    """Each a number of messages. `paused`: those that are due in paused queues, which are counted as due too."""

    live: Count
    due: Count
    scheduled: Count
    running: Count
    retrying: Count
    paused: Count
    dead: Count


def state_counts(store: Store, now: datetime, paused: Collection[str] | None = None) -> StateCounts:
    """The counts of the tabs. Reads a bounded number of rows, in at most 12 statements.

    `paused`: the queues that are paused, if they are known.
    """
    paused = store.paused() if paused is None else paused
    dead = count_ended(store, EndedSelection(outcome="failed"))
    held = Message.objects.using(store.alias).annotate(is_held=is_held(now)).filter(queue__gt="")
    columns = held.order_by("queue", "priority", "scheduled_at").values_list(
        "queue", "scheduled_at", "attempt", "is_held"
    )
    rows = list(columns[: FEW + 1])
    if len(rows) > FEW:
        return _many(store, now, paused, dead)
    counts: Counter[str] = Counter()
    for queue, scheduled_at, attempt, is_held_ in rows:
        counts.update(_states(queue in paused, scheduled_at <= now, attempt > 0, is_held_))
    exact = {name: Count(counts[name], exact=True) for name in (*State, PAUSED)}
    return StateCounts(
        Count(len(rows), exact=True),
        exact[State.DUE],
        exact[State.SCHEDULED],
        exact[State.RUNNING],
        exact[State.RETRYING],
        exact[PAUSED],
        dead,
    )


def _states(is_paused: bool, is_due: bool, was_tried: bool, is_held: bool) -> set[str]:
    """The states of one message, as the filters of the list mean them."""
    if is_held:
        return {State.RUNNING}
    states: set[str] = {State.RETRYING} if was_tried else set()
    if not is_due:
        return states or {State.SCHEDULED}
    return states | {State.DUE} | ({PAUSED} if is_paused else set())


def _many(store: Store, now: datetime, paused: Collection[str], dead: Count) -> StateCounts:
    lanes = store.lanes()
    due = _of(store, lanes).filter(is_free(now), scheduled_at__lte=now)
    stuck = due.filter(queue__in=paused)
    retrying = scan_live(store, Selection(as_of=now, state=State.RETRYING), None, FEW, LOOK)
    return StateCounts(
        live=bounded_rows(Message.objects.using(store.alias).filter(queue__gt=""), FEW),
        due=bounded_rows(due, FEW),
        scheduled=bounded_rows(_of(store, lanes).filter(scheduled_at__gt=now, attempt=0), FEW),
        running=Count(sum(worker.held for worker in live_workers(store, now)), exact=False),
        retrying=Count(len(retrying.found), exact=True if retrying.reached is None else None),
        paused=bounded_rows(stuck, FEW) if paused else Count(0, exact=True),
        dead=dead,
    )


def _of(store: Store, lanes: list[Lane]) -> QuerySet[Message]:
    """All messages, found by their lanes: the due index serves a range of time only within one."""
    queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
    return Message.objects.using(store.alias).filter(queue__in=queues, priority__in=priorities)
