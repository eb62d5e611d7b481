"""A failed or cancelled flow goes on: what did not succeed runs once more, and what was skipped waits again."""

from __future__ import annotations

from itertools import batched
from typing import TYPE_CHECKING

from delayedq.core.flows import FlowState, StepState
from delayedq.exceptions import InvalidFlow
from delayedq.store import operator_store
from delayedq.store.flows.ending import advance, lock_flows
from delayedq.store.operator import Revival

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import FlowMember
    from delayedq.store.base import Store

#: Messages in one statement.
CHUNK = 1_000
#: How a message ends that did not succeed.
_OUTCOMES = ("failed", "expired", "cancelled")


def retry_flow(store: Store, id_: int) -> int:
    """See `FlowResult.retry`."""
    from delayedq.models import Flow, FlowStep  # they are loaded after the tasks

    with store.database.atomic():
        lock_flows(store, [id_])
        flow = Flow.objects.using(store.alias).filter(id=id_).first()
        if flow is None or flow.state not in {FlowState.FAILED, FlowState.CANCELLED}:
            state = "not there" if flow is None else flow.state
            raise InvalidFlow(f"Flow {id_} is {state}: only one that has failed or was cancelled can be retried.")
        now = store.now()
        steps = FlowStep.objects.using(store.alias).filter(flow_id=id_)
        bad = list(steps.filter(state__in=[StepState.FAILED, StepState.CANCELLED]).values_list("id", flat=True))
        members = _members(store).filter(step_id__in=bad, outcome__in=_OUTCOMES)
        revived = sum(_revive(store, members.filter(outcome=outcome), outcome, now) for outcome in _OUTCOMES)
        steps.filter(id__in=bad).update(state=StepState.RUNNING, ended_at=None)
        steps.filter(state=StepState.SKIPPED).update(state=StepState.WAITING)
        flow.ended_at, flow.outcome, flow.stopped_at = None, "", None
        if flow.deadline_at is not None:
            flow.deadline_at += now - flow.created_at
        flow.save(using=store.alias, update_fields=["ended_at", "outcome", "stopped_at", "deadline_at"])
        advance(store, [], [id_])
    return revived


def _revive(store: Store, members: QuerySet[FlowMember], outcome: str, now: datetime) -> int:
    """Raises InvalidFlow if one of them is not in the history. Those that live again already are left as they are."""
    from delayedq.models import Message

    ids = list(members.order_by("message_id").values_list("message_id", flat=True))
    revived: set[int] = set()
    for some in batched(ids, CHUNK):
        revived |= operator_store(store.alias).revive([Revival(id_, now) for id_ in some], outcome)
        living = Message.objects.using(store.alias).filter(id__in=some).values_list("id", flat=True)
        if missing := set(some) - set(living):
            raise InvalidFlow(
                f"{len(missing)} of the messages that did not succeed are not in the history any more, such as "
                f"{min(missing)}: the flow can't be retried. Nothing was changed."
            )
        _members(store).filter(message_id__in=some).update(outcome=None)
    return len(revived)


def _members(store: Store) -> QuerySet[FlowMember]:
    from delayedq.models import FlowMember

    return FlowMember.objects.using(store.alias)
