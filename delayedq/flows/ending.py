"""Messages of flows end: which of their steps have ended with them, and what becomes of the steps that wait."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import InterfaceError, OperationalError
from django.db.models import Exists, OuterRef

from delayedq.core.lifecycle import FinalOutcome
from delayedq.core.metadata import FLOW, STEP_DEADLINE, with_own
from delayedq.exceptions import INTERRUPTIONS
from delayedq.flows import members_sql
from delayedq.flows.rules import (
    FlowState,
    FlowVerdict,
    StepState,
    Stop,
    ended_as,
    flow_of,
    judge,
    number_of,
    numbers,
    step_id,
    step_of,
)
from delayedq.flows.rules import JudgedStep as Judged
from delayedq.flows.step_results import is_true
from delayedq.store.protocol import Finish, Offer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from django.db.models import QuerySet

    from delayedq.models import Flow, FlowStep
    from delayedq.store.base import Store
    from delayedq.store.protocol import Settled, Transition

# The messages of a step that waits, as its row keeps them.


_KEPT = ("queue", "kind", "payload", "priority", "max_attempts", "metadata", "channel")


def dump_calls(offers: Iterable[Offer]) -> str:
    """The JSON of messages without keys. Their limits do not refuse them: an end waits for no room."""
    return json.dumps([_row(offer) for offer in offers], separators=(",", ":"))


def _row(offer: Offer) -> list[Any]:
    at = None if offer.scheduled_at is None else offer.scheduled_at.isoformat()
    return [at, *(getattr(offer, name) for name in _KEPT)]


def load_calls(text: str) -> list[Offer]:
    """What `dump_calls` wrote."""
    return [
        Offer(**dict(zip(_KEPT, kept, strict=True)), scheduled_at=None if at is None else datetime.fromisoformat(at))
        for at, *kept in json.loads(text)
    ]


def until(offers: Sequence[Offer], deadline_at: datetime | None, now: datetime) -> Sequence[Offer]:
    """The messages of a flow with this deadline: none of their attempts goes on for longer."""
    return offers if deadline_at is None else [_until(offer, deadline_at, now) for offer in offers]


def _until(offer: Offer, deadline_at: datetime, now: datetime) -> Offer:
    seconds = max(0.0, (deadline_at - max(now, offer.scheduled_at or now)).total_seconds())
    return offer._replace(metadata=with_own(offer.metadata, {STEP_DEADLINE: seconds}))


# Ending


logger = logging.getLogger("delayedq")

#: What says nothing of the flow that is looked at.
AWAY = (OperationalError, InterfaceError, *INTERRUPTIONS)

#: A batch of so many members of each step may well end none of them.
MANY = 16


def in_flows(transitions: Sequence[Transition]) -> list[Finish]:
    """Those that end messages of flows."""
    return [
        one
        for one in transitions
        if one.claimed.metadata is not None and FLOW in one.claimed.metadata and isinstance(one, Finish)
    ]


def steps_that_go_on(finishes: Sequence[Finish]) -> set[int]:
    """The steps of which this is a batch, if it is so large that it hardly ends any of them; else an empty set."""
    if not finishes or any(one.outcome is not FinalOutcome.SUCCEEDED for one in finishes):
        return set()
    places = [step_of(metadata) for metadata in {one.claimed.metadata for one in finishes}]
    if len(finishes) < MANY * len(places):
        return set()
    return {step_id(*place) for place in places if place is not None}


def end_members(store: Store, finishes: Sequence[Finish], settled: Settled) -> bool:
    """Within the transaction that settles them. Returns whether messages were offered: steps are released."""
    untouched = settled.lost | settled.busy | settled.superseded
    steps: set[int] = set()
    ended: dict[int, str] = {}
    for one in finishes:
        place = step_of(one.claimed.metadata)
        if place is not None and one.claimed.id not in untouched:
            ended[one.claimed.id] = one.outcome
            steps.add(step_id(*place))
    over = _record(store, steps, ended) if ended else []
    return bool(over) and _isolated(store, over)


def end(store: Store, steps: Collection[int], ended: Mapping[int, str]) -> bool:
    """Record how these messages (by id) of these steps ended, and release what waits; returns whether anything did."""
    return _advance(store, _record(store, steps, ended), ())


def _record(store: Store, steps: Collection[int], ended: Mapping[int, str]) -> list[int]:
    """Returns those of these steps whose members have all ended. Their flows are locked."""
    lock_flows(store, map(flow_of, steps))
    by_outcome: defaultdict[str, list[int]] = defaultdict(list)
    for id_, outcome in ended.items():
        by_outcome[str(outcome)].append(id_)
    return members_sql.end_members(store.database, by_outcome, [*steps])


def _isolated(store: Store, over: Collection[int]) -> bool:
    """`advance`, but a flow whose rows somebody has spoiled keeps no message from ending: that is logged."""
    try:
        with store.database.atomic():
            return _advance(store, over, ())
    except AWAY:
        raise
    except Exception:
        by_flow = {flow: [one for one in over if flow_of(one) == flow] for flow in map(flow_of, over)}
        if len(by_flow) > 1:
            offered = [_isolated(store, of_flow) for of_flow in by_flow.values()]
            return any(offered)
        logger.exception("A step of flow %s has ended, and what follows it can't be told.", *by_flow)
        return False


def live_again(store: Store, ids: Collection[int]) -> None:
    """Of these messages, which are brought back, those of running steps have not ended: their steps wait for them."""
    from delayedq.models import FlowMember, FlowStep

    running = FlowStep.objects.using(store.alias).filter(id=OuterRef("step_id"), state=StepState.RUNNING)
    members = FlowMember.objects.using(store.alias).filter(message_id__in=ids, outcome__isnull=False)
    members.filter(Exists(running)).update(outcome=None)


def lock_flows(store: Store, flows: Iterable[int]) -> None:
    """Until the transaction ends: nobody else ends or releases steps of these flows."""
    members_sql.lock(store.database, [step_id(flow, 0) for flow in set(flows)])


def advance(store: Store, steps: Collection[int], flows: Collection[int] = ()) -> bool:
    """End those of these steps whose members have all ended; judge their flows, and these. Returns what `end` does.

    The flows are locked. A group that is released without members has ended at once, so it may take several rounds.
    """
    return _advance(store, members_sql.over(store.database, [*steps]) if steps else [], flows)


def _advance(store: Store, over: Collection[int], flows: Collection[int]) -> bool:
    """`advance` of steps whose members have all ended."""
    offered = False
    while over or flows:
        ended = _ended(store, over) if over else {}
        judging = Judging(store, {*flows, *map(flow_of, over)}, ended)
        empty, flows = judging.carry_out(), ()
        over = members_sql.over(store.database, empty) if empty else []
        offered = offered or judging.offered
    return offered


def _ended(store: Store, over: Collection[int]) -> dict[int, StepState]:
    """How these steps have ended."""
    from delayedq.models import FlowMember  # stores are imported before the models are loaded

    outcomes: defaultdict[int, set[str]] = defaultdict(set)
    members = FlowMember.objects.using(store.alias).filter(step_id__in=over)
    for step, outcome in members.values_list("step_id", "outcome").distinct():
        outcomes[step].add(outcome or "")
    return {step: ended_as(outcomes[step]) for step in over}


class Judging:
    """One look at flows in which something has ended."""

    def __init__(self, store: Store, flows: Collection[int], ended: Mapping[int, StepState]) -> None:
        from delayedq.models import Flow, FlowStep

        self._store = store
        self.offered = False
        self._now = store.now()
        self._flows: dict[int, Flow] = Flow.objects.using(store.alias).in_bulk(list(flows))
        rows = FlowStep.objects.using(store.alias).filter(flow_id__in=list(self._flows)).defer("calls").order_by("id")
        self._rows: dict[int, FlowStep] = {row.pk: row for row in rows}
        self._changed: dict[int, StepState] = {}
        reopened = {self._rows[id_].flow_id for id_, state in ended.items() if self._end(id_, state)}
        self._reopen(reopened)

    def _end(self, id_: int, state: StepState) -> bool:
        """Whether it had ended in another way before: its message was run once more."""
        row = self._rows.get(id_)
        if row is None or row.state == state:
            return False
        had_ended = row.state != StepState.RUNNING
        self._set(row, state)
        return had_ended

    def _set(self, row: FlowStep, state: StepState) -> None:
        row.state = state
        self._changed[row.pk] = state

    def _reopen(self, flows: Collection[int]) -> None:
        """What was skipped waits again: it is judged once more, by how its predecessors ended now."""
        for row in self._rows.values():
            if row.flow_id in flows and row.state == StepState.SKIPPED:
                self._set(row, StepState.WAITING)

    def carry_out(self) -> list[int]:
        """Release, skip and end. Returns the steps that were released without any message."""
        released: list[int] = []
        states = {}
        for id_, flow in self._flows.items():
            verdict = self._judged(flow)
            for number in verdict.skipped:
                self._set(self._rows[step_id(id_, number)], StepState.SKIPPED)
            released += [step_id(id_, number) for number in verdict.released]
            states[id_] = verdict.flow
        empty = self._release(released)
        self._write()
        self._end_flows({id_: state for id_, state in states.items() if state != self._flows[id_].state})
        return empty

    def _judged(self, flow: Flow) -> FlowVerdict:
        steps = [
            Judged(number_of(row.pk), StepState(row.state), numbers(row.after), row.runs_when)
            for row in self._rows.values()
            if row.flow_id == flow.pk
        ]
        stop = Stop(flow.stopped_at is not None, flow.deadline_at is not None and flow.deadline_at <= self._now)
        return judge(steps, flow.policy, stop, lambda number: is_true(step_id(flow.pk, number), self._store.alias))

    def _release(self, ids: Collection[int]) -> list[int]:
        from delayedq.models import FlowStep

        if not ids:
            return []
        rows = FlowStep.objects.using(self._store.alias)
        calls = dict(rows.filter(id__in=ids).values_list("id", "calls"))
        offers = {
            id_: until(load_calls(calls[id_] or "[]"), self._flows[flow_of(id_)].deadline_at, self._now) for id_ in ids
        }
        empty = sorted(id_ for id_, of_step in offers.items() if not of_step)
        store_members(self._store, {id_: of_step for id_, of_step in offers.items() if of_step}, checked=True)
        self.offered = len(empty) < len(ids)
        for id_ in ids:
            self._changed.pop(id_, None)
        rows.filter(id__in=ids).update(state=StepState.RUNNING, released_at=self._now, ended_at=None)
        return empty

    def _write(self) -> None:
        from delayedq.models import FlowStep

        rows = FlowStep.objects.using(self._store.alias)
        for state in sorted(set(self._changed.values())):
            ids = [id_ for id_, changed in self._changed.items() if changed == state]
            has_ended = state not in {StepState.WAITING, StepState.SKIPPED}
            rows.filter(id__in=ids).update(state=state, ended_at=self._now if has_ended else None)

    def _end_flows(self, states: Mapping[int, FlowState]) -> None:
        """What another transaction has locked, say to cancel it, or has cancelled since, is ended by the next sweep."""
        from delayedq.models import Flow

        for id_, state in sorted(states.items()):
            rows = Flow.objects.using(self._store.alias).filter(id=id_, stopped_at=self._flows[id_].stopped_at)
            if not lock_if_free(self._store, rows):
                continue
            ended = {"ended_at": self._now, "outcome": state} if state != FlowState.RUNNING else _OPEN
            rows.update(**ended)
            if state == FlowState.FAILED and (text := self._flows[id_].on_failure):
                self._store.offer_many(load_calls(text), checked=True)
                self.offered = True


_OPEN: dict[str, Any] = {"ended_at": None, "outcome": ""}


def lock_if_free(store: Store, rows: QuerySet[Any]) -> bool:
    """Lock these rows until the transaction ends, unless somebody else has: whether there are any."""
    return bool(store.database.unlocked(rows).values_list("id"))


def store_members(store: Store, offers: Mapping[int, Sequence[Offer]], *, checked: bool = False) -> None:
    """Offer the messages of these steps (by id), and store whose they are. `checked`: see `Store.offer_many`."""
    store.database.retried(partial(_store_members, store, offers, checked=checked))


def _store_members(store: Store, offers: Mapping[int, Sequence[Offer]], *, checked: bool) -> None:
    each = [offer for of_step in offers.values() for offer in of_step]
    if len(offers) == 1 and store.database.connection.vendor == "postgresql" and all(offer.is_plain for offer in each):
        from delayedq.flows.postgresql import offer_step

        offer_step(store, each, next(iter(offers)), checked=checked)
        return
    with store.database.atomic():
        steps = [step for step, of_step in offers.items() for _ in of_step]
        offered = store.offer_many(each, checked=checked)
        members_sql.store(store.database, [one.id for one in offered if one.id is not None], steps)
