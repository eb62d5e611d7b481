"""Whether this version of the code can run what waits, for `manage.py delayedq check-pending`: a gate for deploys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.flows import StepState
from delayedq.core.serialization import load_call
from delayedq.core.steps import SLEEP, base_name
from delayedq.exceptions import CannotRun
from delayedq.models import Flow, FlowStep, Message
from delayedq.store.flows.calls import load_calls
from delayedq.store.protocol import BARE
from delayedq.store.steps import steps_in_flight
from delayedq.tasks import parameters_of, registered, task_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

#: Rows that are read at once.
ROWS = 1_000


class Unrunnable(NamedTuple):
    """Messages of one task that fail alike. `id`: of the first of them.

    is_later: they are calls of flows that wait for other steps, and are no messages yet; `id` is that of the flow.
    """

    kind: str
    reason: str
    id: int
    number: int
    is_later: bool = False


def check_pending(store: Store) -> tuple[int, list[Unrunnable]]:
    """How many messages of tasks wait, and those that this version can't run.

    Their task is unknown, does not take their arguments, or declares its steps without one that they have recorded.
    Reads all of them, and what they refer to. Also reads the calls of flows that are not messages yet.
    """
    checked = 0
    found: dict[tuple[str, str, bool], list[int]] = {}
    rows = Message.objects.using(store.alias).order_by("id").values_list("id", "queue", "kind", "payload")
    for id_, queue, kind, payload in rows.iterator(chunk_size=ROWS):
        if BARE in queue:
            continue
        checked += 1
        if reason := _reason(kind, payload):
            found.setdefault((kind, reason, False), [id_, 0])[1] += 1
    for flow_id, offer in _later(store):
        if reason := _reason(offer.kind, offer.payload, is_later=True):
            found.setdefault((offer.kind, reason, True), [flow_id, 0])[1] += 1
    unrunnable = [
        *(Unrunnable(kind, reason, id_, number, later) for (kind, reason, later), (id_, number) in found.items()),
        *(Unrunnable(kind, reason, *counted) for (kind, reason), counted in _unknown_steps(store).items()),
    ]
    return checked, sorted(unrunnable)


def _later(store: Store) -> Iterator[tuple[int, Offer]]:
    """The calls of open flows that wait for others, each with the id of its flow."""
    flows = Flow.objects.using(store.alias).filter(ended_at=None).order_by("id")
    steps = FlowStep.objects.using(store.alias).filter(state=StepState.WAITING, flow_id__in=flows.values("id"))
    for rows in (steps.order_by("id").values_list("flow_id", "calls"), flows.values_list("id", "on_failure")):
        for flow_id, calls in rows.iterator(chunk_size=ROWS):
            yield from ((flow_id, offer) for offer in load_calls(calls or "[]"))


def _unknown_steps(store: Store) -> dict[tuple[str, str], tuple[int, int]]:
    """By task and reason, the first message and the number of those that have recorded a step that is not declared."""
    ids: dict[tuple[str, str], dict[int, None]] = {}
    for id_, kind, name in steps_in_flight(store):
        task, step = registered.get(kind), base_name(name)
        if task is None or task.steps is None or step == SLEEP or step in task.steps:
            continue
        reason = f"They have recorded the step {step!r}; the steps of the task are {', '.join(sorted(task.steps))}."
        ids.setdefault((kind, reason), {})[id_] = None
    return {about: (next(iter(these)), len(these)) for about, these in ids.items()}


def _reason(kind: str, payload: str, *, is_later: bool = False) -> str:
    """Why such a message can't run; "" if it can. is_later: what its arguments refer to may not be there yet."""
    try:
        task = task_at(kind)
        args, kwargs = _unread(payload) if is_later else load_call(payload)
        parameters_of(task).bind(*args, **kwargs)
    except (CannotRun, TypeError) as error:
        return str(error)
    return ""


def _unread(payload: str) -> tuple[list[object], dict[str, object]]:
    """The arguments as they are stored: to know whether they fit, their values are not needed."""
    call = json.loads(payload)
    return call.get("args", []), call.get("kwargs", {})
