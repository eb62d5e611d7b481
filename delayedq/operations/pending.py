"""Whether this version of the code can run what waits, for `manage.py delayedq check-pending`: a gate for deploys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.serialization import load_call
from delayedq.core.steps import SLEEP, base_name
from delayedq.exceptions import CannotRun
from delayedq.models import Message
from delayedq.store.protocol import BARE
from delayedq.store.steps import steps_in_flight
from delayedq.tasks import parameters_of, registered, task_at

if TYPE_CHECKING:
    from delayedq.store.base import Store

#: Rows that are read at once.
ROWS = 1_000


class Unrunnable(NamedTuple):
    """Messages of one task that fail alike. `id`: of the first of them."""

    kind: str
    reason: str
    id: int
    number: int


def check_pending(store: Store) -> tuple[int, list[Unrunnable]]:
    """How many messages of tasks wait, and those that this version can't run.

    Their task is unknown, does not take their arguments, or declares its steps without one that they have recorded.
    Reads all of them, and what they refer to.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    checked = 0
    rows = Message.objects.using(store.alias).order_by("id").values_list("id", "queue", "kind", "payload")
    for id_, queue, kind, payload in rows.iterator(chunk_size=ROWS):
        if BARE in queue:
            continue
        checked += 1
        if reason := _reason(kind, payload):
            first, number = found.get((kind, reason), (id_, 0))
            found[kind, reason] = first, number + 1
    found |= _unknown_steps(store)
    return checked, [Unrunnable(kind, reason, *counted) for (kind, reason), counted in sorted(found.items())]


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


def _reason(kind: str, payload: str) -> str:
    """Why such a message can't run; "" if it can."""
    try:
        task = task_at(kind)
        args, kwargs = load_call(payload)
        parameters_of(task).bind(*args, **kwargs)
    except (CannotRun, TypeError) as error:
        return str(error)
    return ""
