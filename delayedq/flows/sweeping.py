"""What workers do for flows besides ending their messages: find what ended elsewhere, and stop what is to be stopped.

The end of a message is told to its flow by the transaction that ends it. Not so if an operator cancels it, or somebody
deletes it: the lease keeper finds that its row is gone. It also cancels the messages of flows that were cancelled or
are over their deadline, if whoever began that has died, and judges flows whose row was locked when they ended. Each of
these may happen twice, or in two processes at once: the second one finds nothing left to do.
"""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import batched
from math import inf
from typing import TYPE_CHECKING

from django.db.models import Exists, Max, OuterRef, Q

from delayedq.cancelling import PATIENCE, cancel
from delayedq.core.flows import FlowState, StepState, step_id
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store.flows.ending import advance, end, lock_flows
from delayedq.store.pages import Page

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from delayedq.store.base import Store

#: Messages in one transaction.
CHUNK = 1_000
#: Flows in one transaction.
FLOWS = 100
#: Who stores a group in parts (`commit_every`) and stored none of it for this long has died.
SILENCE = timedelta(days=1)


def sweep(store: Store, pause_at: float = inf) -> int:
    """Look at all flows that have not ended; returns how many there were. One query if there are none.

    pause_at: at this moment of `time.monotonic()` it leaves messages to the next sweep, and waits for no locked ones:
    for the lease keeper, which has leases to renew.
    """
    rows = Flow.objects.using(store.alias).filter(ended_at=None).order_by("id")
    flows = dict(rows.values_list("id", "stopped_at"))
    if flows:
        for id_ in _half_stored(store):
            flows[id_] = store.now()
            rows.filter(id=id_, stopped_at=None).update(stopped_at=flows[id_])
        late = set(rows.filter(deadline_at__lte=store.now()).values_list("id", flat=True))
        sweep_flows(store, flows, [id_ for id_, stopped_at in flows.items() if stopped_at or id_ in late], pause_at)
    return len(flows)


def _half_stored(store: Store) -> list[int]:
    """Its first groups are stored one after another: the last part of any of them counts."""
    going = Flow.objects.using(store.alias).filter(ended_at=None).values("id")
    steps = FlowStep.objects.using(store.alias).filter(flow_id__in=going, state=StepState.FILLING)
    stored = steps.order_by().values("flow_id").annotate(last=Max("released_at"))
    return list(stored.filter(last__lt=store.now() - SILENCE).values_list("flow_id", flat=True))


def flow_deadlines(store: Store) -> list[datetime]:
    """When the flows that have not ended are to be stopped."""
    rows = Flow.objects.using(store.alias).filter(ended_at=None, deadline_at__isnull=False)
    return list(rows.values_list("deadline_at", flat=True))  # type: ignore[arg-type]  # none is None


def sweep_flows(store: Store, flows: Collection[int], stopped: Collection[int], pause_at: float = inf) -> None:
    """Look at these flows; `stopped`: those of them of which no message shall run any more."""
    reached = []
    for id_ in stopped:
        _stop(store, id_, pause_at)
        reached.append(id_)
        if time.monotonic() >= pause_at:
            break
    left = set(stopped) - set(reached)
    for some in batched(sorted(set(flows) - left), FLOWS):
        _end_vanished(store, some, pause_at)
        _judge(store, some, set(reached) & set(some))


def _stop(store: Store, flow: int, pause_at: float) -> None:
    """Cancel what lives of a flow. Nothing is added to a group of it any more.

    Who released steps, and did not see yet that it is stopped, has committed when the lock is ours.
    """
    with store.database.atomic():
        lock_flows(store, [flow])
    if not _is_stopped(store, flow):
        return
    steps = FlowStep.objects.using(store.alias).filter(flow_id=flow)
    steps.filter(state=StepState.FILLING).update(state=StepState.RUNNING)
    for step in steps.filter(state=StepState.RUNNING).values_list("id", flat=True):
        last = 0
        while ids := _open_members(store, step, last):
            if _is_stopped(store, flow):
                cancel(store, ids, PATIENCE if pause_at == inf else 0.0)
            if time.monotonic() >= pause_at:
                return
            last = ids[-1]


def _open_members(store: Store, step: int, after: int) -> list[int]:
    """The next CHUNK of them, by the index: a group may have a million."""
    members = FlowMember.objects.using(store.alias).filter(step_id=step, message_id__gt=after, outcome=None)
    return list(members.order_by("message_id").values_list("message_id", flat=True)[:CHUNK])


def _is_stopped(store: Store, flow: int) -> bool:
    """Whoever says so may have asked before it was retried."""
    rows = Flow.objects.using(store.alias).filter(id=flow, ended_at=None)
    return rows.filter(Q(stopped_at__isnull=False) | Q(deadline_at__lte=store.now())).exists()


def _end_vanished(store: Store, flows: Collection[int], pause_at: float) -> None:
    """Messages that live no more, and whose flow was not told: by an operator, or a deletion."""
    running = FlowStep.objects.using(store.alias).filter(flow_id__in=flows, state=StepState.RUNNING).values("id")
    living = Message.objects.using(store.alias).filter(id=OuterRef("message_id"))
    members = FlowMember.objects.using(store.alias).filter(step_id__in=running, outcome=None).filter(~Exists(living))
    while vanished := dict(members.values_list("message_id", "step_id")[:CHUNK]):
        with store.database.atomic():
            history = FinishedMessage.objects.using(store.alias).filter(id__in=vanished)
            outcomes = dict(history.values_list("id", "outcome"))
            end(store, set(vanished.values()), {id_: outcomes.get(id_, "cancelled") for id_ in vanished})
        if time.monotonic() >= pause_at:
            return


def _judge(store: Store, flows: Collection[int], stopped: Collection[int]) -> None:
    """Flows of which nothing runs, that are stopped, or of which a step has ended unseen."""
    steps = FlowStep.objects.using(store.alias)
    members = FlowMember.objects.using(store.alias).filter(step_id=OuterRef("id"), outcome=None)
    running = steps.filter(flow_id__in=flows, state=StepState.RUNNING)
    over = dict(running.filter(~Exists(members)).values_list("id", "flow_id"))
    going = steps.filter(flow_id=OuterRef("id"), state__in=[StepState.RUNNING, StepState.FILLING])
    open_flows = Flow.objects.using(store.alias).filter(id__in=flows, ended_at=None)
    judged = set(open_flows.filter(Q(id__in=stopped) | ~Exists(going)).values_list("id", flat=True))
    if over or judged:
        with store.database.atomic():
            lock_flows(store, {*over.values(), *judged})
            advance(store, list(over), judged)


def forget_flows(
    store: Store, older_than: timedelta, after: tuple[datetime, int] | None = None, limit: int = FLOWS
) -> Page:
    """Of the next flows that ended longer ago, delete those that nothing needs, with their steps.

    Their messages go with the history. A flow that failed stays as long as one of its messages is a dead letter.
    """
    rows = Flow.objects.using(store.alias).filter(ended_at__lt=store.now() - older_than)
    if after is not None:
        rows = rows.filter(Q(ended_at__gt=after[0]) | Q(ended_at=after[0], id__gt=after[1]))
    page = list(rows.order_by("ended_at", "id").values_list("ended_at", "id", "outcome")[:limit])
    forgotten = sum(_forget(store, id_, outcome) for _, id_, outcome in page)
    return Page(forgotten, page[-1][:2] if len(page) == limit else None)


def _forget(store: Store, id_: int, outcome: str) -> bool:
    """Its members go first, CHUNK at a time: what is left of it then is found again by its row."""
    of_flow = FlowMember.objects.using(store.alias).filter(
        step_id__gte=step_id(id_, 0), step_id__lt=step_id(id_ + 1, 0)
    )
    if outcome != FlowState.SUCCEEDED:
        dead = FinishedMessage.objects.using(store.alias).filter(outcome="failed", id=OuterRef("message_id"))
        if of_flow.filter(~Q(outcome="succeeded"), Exists(dead)).exists():
            return False
    while ids := list(of_flow.values_list("message_id", flat=True)[:CHUNK]):
        of_flow.filter(message_id__in=ids).delete()
    with store.database.atomic():
        of_flow.delete()
        FlowStep.objects.using(store.alias).filter(flow_id=id_).delete()
        Flow.objects.using(store.alias).filter(id=id_).delete()
    return True
