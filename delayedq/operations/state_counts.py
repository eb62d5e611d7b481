"""How many messages are in each state: exact for a small queue, of a long one counted up to a bound or estimated."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from delayedq.models import Message, is_free, is_held
from delayedq.operations.browsing import scan_live
from delayedq.operations.counting import Count, bounded_rows, count_ended
from delayedq.operations.pauses import paused_now
from delayedq.operations.selecting import EndedSelection, Selection
from delayedq.operations.workers import live_workers
from delayedq.store.operator import State

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.operations.pauses import Paused
    from delayedq.store.base import Store
    from delayedq.store.protocol import Lane

#: Up to this many live messages are read one by one, which answers for all states at once.
FEW = 1_000
#: Of more, those that wait for another attempt or whose task is paused are looked for among this many.
LOOK = 2_000


class StateCounts(NamedTuple):
    """Each a number of messages. `paused`: what is due of paused queues and tasks, which is counted as due too."""

    live: Count
    due: Count
    scheduled: Count
    running: Count
    retrying: Count
    paused: Count
    dead: Count


def state_counts(store: Store, now: datetime, paused: Paused | None = None) -> StateCounts:
    """The counts of the tabs. Reads a bounded number of rows, in at most 14 statements.

    `paused`: what is paused, if it is known.
    """
    paused = paused_now(store) if paused is None else paused
    dead = count_ended(store, EndedSelection(outcome="failed"))
    held = Message.objects.using(store.alias).annotate(is_held=is_held(now)).filter(queue__gt="")
    columns = held.order_by("queue", "priority", "scheduled_at").values_list(
        "queue", "kind", "scheduled_at", "attempt", "is_held"
    )
    rows = list(columns[: FEW + 1])
    if len(rows) > FEW:
        return _many(store, now, paused, dead)
    counts: Counter[str] = Counter()
    for queue, kind, scheduled_at, attempt, is_held_ in rows:
        counts.update(_states(paused.has(queue, kind), scheduled_at <= now, attempt > 0, is_held_))
    exact = {state: Count(counts[state], exact=True) for state in State}
    return StateCounts(
        Count(len(rows), exact=True),
        exact[State.DUE],
        exact[State.SCHEDULED],
        exact[State.RUNNING],
        exact[State.RETRYING],
        exact[State.PAUSED],
        dead,
    )


def _states(is_paused: bool, is_due: bool, was_tried: bool, is_held: bool) -> set[str]:
    """The states of one message, as the filters of the list mean them."""
    if is_held:
        return {State.RUNNING}
    states: set[str] = {State.RETRYING} if was_tried else set()
    if not is_due:
        return states or {State.SCHEDULED}
    return states | {State.DUE} | ({State.PAUSED} if is_paused else set())


def _many(store: Store, now: datetime, paused: Paused, dead: Count) -> StateCounts:
    lanes = store.lanes()
    due = _of(store, lanes).filter(is_free(now), scheduled_at__lte=now)
    return StateCounts(
        live=bounded_rows(Message.objects.using(store.alias).filter(queue__gt=""), FEW),
        due=bounded_rows(due, FEW),
        scheduled=bounded_rows(_of(store, lanes).filter(scheduled_at__gt=now, attempt=0), FEW),
        running=Count(sum(worker.held for worker in live_workers(store, now)), exact=False),
        retrying=_scanned(store, Selection(as_of=now, state=State.RETRYING)),
        paused=_paused(store, now, paused, due),
        dead=dead,
    )


def _paused(store: Store, now: datetime, paused: Paused, due: QuerySet[Message]) -> Count:
    if paused.kinds:
        return _scanned(store, Selection(as_of=now, state=State.PAUSED))
    return bounded_rows(due.filter(queue__in=paused.queues), FEW) if paused.queues else Count(0, exact=True)


def _scanned(store: Store, selection: Selection) -> Count:
    """What no index has, counted among the first LOOK."""
    page = scan_live(store, selection, None, FEW, LOOK)
    return Count(len(page.found), exact=True if page.reached is None else None)


def _of(store: Store, lanes: list[Lane]) -> QuerySet[Message]:
    """All messages, found by their lanes: the due index serves a range of time only within one."""
    queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
    return Message.objects.using(store.alias).filter(queue__in=queues, priority__in=priorities)
