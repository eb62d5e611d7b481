"""Look after flows from the workers: find members that ended elsewhere, and stop what is to be stopped.

The end of a message is told to its flow by the transaction that ends it. Not so if an operator cancels it, or somebody
deletes it: the lease keeper finds that its row is gone. It also cancels the messages of flows that were cancelled or
are over their deadline, if whoever began that has died, and judges flows whose row was locked when they ended. Each of
these may happen twice, or in two processes at once: the second one finds nothing left to do.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from functools import partial
from itertools import batched
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Exists, OuterRef, Q

from delayedq.flows.ending import AWAY, advance, end, lock_flows, lock_if_free
from delayedq.flows.rules import FlowState, StepState, flow_of, step_id
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.results.cancelling import PATIENCE, cancel
from delayedq.store.sweeps import Swept

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store

logger = logging.getLogger("delayedq")

#: Messages in one transaction.
CHUNK = 1_000

#: Members that one statement reads.
READ = 5_000

#: Flows that one statement reads.
FLOWS = 100

#: Who stores a group in parts (`commit_every`) and stored none of it for this long has died.
SILENCE = timedelta(days=1)

#: The round over all flows, beside the flows (by id) that are being stopped.
_ROUND = 0


class Sweeping:
    """Rounds over the flows that have not ended, page by page; what is to be stopped has its turn beside them.

    No step reads more than FLOWS flows and their steps, or READ members, or ends more than CHUNK messages: whoever has
    leases to renew pauses between two of them, and goes on there. Only the ids of a round are read at once: on
    PostgreSQL no index has them in their order. patience: as for `cancel`.
    """

    def __init__(self, store: Store, patience: float = PATIENCE) -> None:
        self._store = store
        self._patience = patience
        self._pages: Iterator[Sequence[int]] | None = None
        self._going: dict[int, Iterator[None]] = {}

    def go_on(self, pause_at: float = inf) -> None:
        """At least one step, until the round is over and all is stopped, or this moment of `time.monotonic()`.

        What is wrong with a flow is logged, and the others go on. Raises django.db.Error if the database is away, or
        has locked something; the next call goes on behind what failed. One query if no flow is open.
        """
        self._going.setdefault(_ROUND, self._round())
        while self._going:
            which = next(iter(self._going))
            steps = self._going.pop(which)
            if next(steps, "over") is None:
                self._going[which] = steps  # the others come first
            if time.monotonic() >= pause_at:
                return

    def _round(self) -> Iterator[None]:
        if self._pages is None:
            rows = Flow.objects.using(self._store.alias).filter(ended_at=None)
            self._pages = batched(sorted(rows.values_list("id", flat=True)), FLOWS)
        for ids in self._pages:
            yield
            yield from self._isolated(ids)
        self._pages = None

    def _isolated(self, ids: Sequence[int]) -> Iterator[None]:
        """What fails is halved until it is one flow: that is left out."""
        try:
            yield from self._look(ids)
        except AWAY:
            raise
        except Exception:
            if len(ids) == 1:
                logger.exception("Flow %s is left as it is: the look at it has failed.", ids[0])
                return
            half = len(ids) // 2
            for some in (ids[:half], ids[half:]):
                yield
                yield from self._isolated(some)

    def _stopping(self, flow: int) -> Iterator[None]:
        try:
            yield from _stop(self._store, flow, self._patience)
        except AWAY:
            raise
        except Exception:
            logger.exception("Flow %s was not stopped. The next round tries it again.", flow)

    def _look(self, ids: Sequence[int]) -> Iterator[None]:
        now = self._store.now()
        rows = Flow.objects.using(self._store.alias).filter(id__in=ids, ended_at=None)
        flows = list(rows.only("stopped_at", "deadline_at"))
        going = _going_steps(self._store, [flow.pk for flow in flows])
        stopped = {flow.pk for flow in flows if flow.stopped_at or (flow.deadline_at and flow.deadline_at <= now)}
        for flow in _half_stored(going, now).difference(stopped):
            if _mark_stopped(self._store, flow, now):
                stopped.add(flow)
        for flow in sorted(stopped):
            self._going.setdefault(flow, self._stopping(flow))
        sizes = {
            step.pk: step.size for step in going if step.state == StepState.RUNNING and step.flow_id not in stopped
        }
        over = yield from _end_vanished(self._store, sizes)
        idle = {flow.pk for flow in flows}.difference(stopped, (step.flow_id for step in going))
        if over or idle:
            _judge(self._store, over, idle)
            yield


def sweep(store: Store) -> None:
    """Look at all flows that have not ended. One query if there are none."""
    Sweeping(store).go_on()


def stop_flow(store: Store, flow: int) -> None:
    """Cancel what lives of a flow that was cancelled, and end it."""
    for _ in _stop(store, flow, PATIENCE):
        pass


def flow_deadlines(store: Store) -> list[datetime]:
    """When the flows that have not ended are to be stopped."""
    rows = Flow.objects.using(store.alias).filter(ended_at=None, deadline_at__isnull=False)
    return list(rows.values_list("deadline_at", flat=True))  # type: ignore[arg-type]  # none is None


def _going_steps(store: Store, flows: Collection[int]) -> list[FlowStep]:
    """Those whose messages live, or are being stored."""
    going = [StepState.RUNNING, StepState.FILLING]
    rows = FlowStep.objects.using(store.alias).filter(flow_id__in=flows, state__in=going).order_by("id")
    return list(rows.only("flow_id", "state", "size", "released_at"))


def _half_stored(going: Collection[FlowStep], now: datetime) -> set[int]:
    """First groups of a flow are stored one after another: the last part of any of them counts."""
    filling = [step for step in going if step.state == StepState.FILLING]
    lives = {step.flow_id for step in filling if step.released_at is None or step.released_at >= now - SILENCE}
    return {step.flow_id for step in filling} - lives


def _mark_stopped(store: Store, flow: int, now: datetime) -> bool:
    """Not if somebody has locked its row, say to cancel it in a long transaction: the leases would wait for that."""
    rows = Flow.objects.using(store.alias).filter(id=flow, ended_at=None, stopped_at=None)
    with store.database.atomic():
        return lock_if_free(store, rows) and bool(rows.update(stopped_at=now))


def _stop(store: Store, flow: int, patience: float) -> Iterator[None]:
    """Cancel what lives of a flow, CHUNK by CHUNK, and end it. Nothing is added to a group of it any more.

    Who released steps, and did not see yet that it is stopped, has committed when the lock is ours.
    """
    with store.database.atomic():
        lock_flows(store, [flow])
    if not _is_stopped(store, flow):
        return
    steps = FlowStep.objects.using(store.alias).filter(flow_id=flow)
    steps.filter(state=StepState.FILLING).update(state=StepState.RUNNING)
    sizes = dict(steps.filter(state=StepState.RUNNING).values_list("id", "size"))
    for part in _open_members(store, sizes):
        for some in batched(part, CHUNK):
            if not _is_stopped(store, flow):
                return
            cancel(store, some, patience)
            _end_those_gone(store, {id_: part[id_] for id_ in some})
            yield
    _judge(store, list(sizes), [flow])


def _is_stopped(store: Store, flow: int) -> bool:
    """Whoever says so may have asked before it was retried."""
    rows = Flow.objects.using(store.alias).filter(id=flow, ended_at=None)
    return rows.filter(Q(stopped_at__isnull=False) | Q(deadline_at__lte=store.now())).exists()


def _end_vanished(store: Store, sizes: Mapping[int, int]) -> Generator[None, None, list[int]]:
    """Messages that live no more, and whose flow was not told: by an operator, or a deletion.

    sizes: how many members each of these steps (by id) has. Returns the steps of which no message lives.
    """
    going: set[int] = set()
    for part in _open_members(store, sizes):
        living = set(Message.objects.using(store.alias).filter(id__in=part).values_list("id", flat=True))
        going |= {step for id_, step in part.items() if id_ in living}
        yield
        for some in batched(part.keys() - living, CHUNK):
            _end_those_gone(store, {id_: part[id_] for id_ in some})
            yield
    return [step for step in sizes if step not in going]


def _open_members(store: Store, sizes: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """The members of these steps that have not ended, with their steps; READ of all members at once."""
    for page in members(store, sizes, Q(outcome=None)):
        yield {id_: step for id_, step, outcome in page if outcome is None}


def members(store: Store, sizes: Mapping[int, int], which: Q) -> Iterator[list[tuple[int, int, str | None]]]:
    """Such members (message, step and outcome) of steps of so many members; READ of them at once, by the index.

    Of a large step, all are read: no statement has to pass a million of them that are others.
    """
    columns = ("message_id", "step_id", "outcome")
    for steps in _together(sizes):
        rows = FlowMember.objects.using(store.alias).filter(step_id__in=steps).values_list(*columns)
        if sum(sizes[step] for step in steps) <= READ:
            yield list(rows.filter(which))
            continue
        rows = rows.order_by("message_id")
        page = list(rows[:READ])
        while page:
            yield page
            page = list(rows.filter(message_id__gt=page[-1][0])[:READ])


def _together(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Steps that have at most READ members together, and each one that has more."""
    some: list[int] = []
    members = 0
    for step, size in sizes.items():
        if some and members + size > READ:
            yield some
            some, members = [], 0
        some.append(step)
        members += size
    if some:
        yield some


def _end_those_gone(store: Store, members: Mapping[int, int]) -> None:
    """Of these members (by message, with their steps), those that live no more, and have not ended."""
    store.database.retried(partial(_end_gone, store, members))


def _end_gone(store: Store, members: Mapping[int, int]) -> None:
    living = Message.objects.using(store.alias).filter(id=OuterRef("message_id"))
    rows = FlowMember.objects.using(store.alias).filter(message_id__in=members.keys(), outcome=None)
    with store.database.atomic():
        lock_flows(store, map(flow_of, members.values()))  # one that was read before may have ended, or live again
        gone = dict(rows.filter(~Exists(living)).values_list("message_id", "step_id"))
        if gone:
            history = FinishedMessage.objects.using(store.alias).filter(id__in=gone)
            outcomes = dict(history.values_list("id", "outcome"))
            end(store, set(gone.values()), {id_: outcomes.get(id_, "cancelled") for id_ in gone})


def _judge(store: Store, steps: Collection[int], flows: Collection[int]) -> None:
    """Steps that may have ended unseen; and flows of which nothing runs, or that are stopped."""
    store.database.retried(partial(_judge_once, store, steps, flows))


def _judge_once(store: Store, steps: Collection[int], flows: Collection[int]) -> None:
    with store.database.atomic():
        lock_flows(store, {*map(flow_of, steps), *flows})
        advance(store, steps, flows)


# Flows that ended long ago are deleted with what is stored of them, in parts: whoever does it may pause after each.


class _SweptPart(NamedTuple):
    """What was done between two pauses: flows that were looked at to the end, and forgotten; members of one."""

    flows: int = 0
    forgotten: int = 0
    read: int = 0
    deleted: int = 0


def forget_flows(
    store: Store, older_than: timedelta, going: Iterator[_SweptPart] | None = None, limit: int = FLOWS
) -> Swept:
    """Of the next flows that ended longer ago, delete those that nothing needs, with their steps.

    Their messages go with the history. A flow that did not succeed stays as long as one of its messages is a dead
    letter, or lives again. One look ends after `limit` flows or READ members, and the next one (`going`) goes on there.
    """
    going = _parts(store, older_than) if going is None else going
    looked = _SweptPart()
    for part in going:
        looked = _SweptPart(*map(sum, zip(looked, part, strict=True)))
        if looked.flows >= limit or looked.read + looked.deleted >= READ:
            return Swept(looked.forgotten or int(looked.deleted > 0), going)
    return Swept(looked.forgotten, None)


def _parts(store: Store, older_than: timedelta) -> Iterator[_SweptPart]:
    rows = Flow.objects.using(store.alias).filter(ended_at__lt=store.now() - older_than).order_by("ended_at", "id")
    page = list(rows.values_list("ended_at", "id")[:FLOWS])
    while page:
        for ended_at, id_ in page:
            yield from _forget(store, id_, ended_at)
        ended_at, id_ = page[-1]
        following = rows.filter(Q(ended_at__gt=ended_at) | Q(ended_at=ended_at, id__gt=id_))
        page = list(following.values_list("ended_at", "id")[:FLOWS])


def _forget(store: Store, id_: int, ended_at: datetime | None) -> Iterator[_SweptPart]:
    """Its steps go first, without which it is not retried any more; then its members, CHUNK at a time.

    What is left of it then is found again by its row. Nothing waits for one who retries it in a long transaction.
    """
    flow = Flow.objects.using(store.alias).filter(id=id_, ended_at=ended_at)
    of_flow = FlowMember.objects.using(store.alias).filter(
        step_id__gte=step_id(id_, 0), step_id__lt=step_id(id_ + 1, 0)
    )
    last: Collection[int] = ()
    if flow.exclude(outcome=FlowState.SUCCEEDED).exists():
        pages = _not_succeeded(store, id_)
        last = next(pages, ())
        for page in pages:
            if _needs(store, last):
                yield _SweptPart(flows=1)
                return
            yield _SweptPart(read=READ)
            last = page
    if not store.database.retried(partial(_delete_steps, store, flow, last)):
        yield _SweptPart(flows=1)
        return
    while ids := list(of_flow.values_list("message_id", flat=True)[:CHUNK]):
        of_flow.filter(message_id__in=ids).delete()
        yield _SweptPart(deleted=len(ids))
    yield _SweptPart(flows=1, forgotten=flow.delete()[0])


def _not_succeeded(store: Store, flow: int) -> Iterator[list[int]]:
    """The messages of a flow that did not succeed, of READ members at once."""
    steps = FlowStep.objects.using(store.alias).filter(flow_id=flow).order_by("id")
    for page in members(store, dict(steps.values_list("id", "size")), ~Q(outcome="succeeded")):
        yield [id_ for id_, _, outcome in page if outcome != "succeeded"]


def _delete_steps(store: Store, flow: QuerySet[Flow], last: Collection[int]) -> bool:
    """Unless one of these messages is needed, or somebody has locked the flow; whether they are deleted."""
    with store.database.atomic():
        if not lock_if_free(store, flow) or _needs(store, last):
            return False
        FlowStep.objects.using(store.alias).filter(flow_id__in=flow.values("id")).delete()
    return True


def _needs(store: Store, ids: Collection[int]) -> bool:
    """Whether one of these messages ends its step once more, or may be brought back to do so."""
    dead_letters: QuerySet[Any] = FinishedMessage.objects.using(store.alias).filter(outcome="failed")
    living: QuerySet[Any] = Message.objects.using(store.alias)
    return any(rows.filter(id__in=ids).exists() for rows in (dead_letters, living)) if ids else False
