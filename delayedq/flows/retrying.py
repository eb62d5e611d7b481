"""A failed or cancelled flow goes on: what did not succeed runs once more, and what was skipped waits again."""

from __future__ import annotations

from functools import partial
from itertools import batched
from typing import TYPE_CHECKING

from delayedq.core.flows import RESULT, FlowState, StepState, flow_of, numbers, step_id
from delayedq.core.metadata import STEP_DEADLINE, with_own
from delayedq.exceptions import CannotRun, InvalidFlow
from delayedq.store import operator_store
from delayedq.store.flows.ending import advance, lock_flows
from delayedq.store.flows.results import results_of
from delayedq.store.operator import Revival

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import FlowMember, FlowStep
    from delayedq.store.base import Store

#: Messages in one statement.
CHUNK = 1_000
#: How a message ends that did not succeed.
_OUTCOMES = ("failed", "expired", "cancelled")


def retry_flow(store: Store, id_: int) -> int:
    """See `FlowResult.retry`."""
    return store.database.retried(partial(_retry, store, id_))


def _retry(store: Store, id_: int) -> int:
    from delayedq.models import Flow, FlowStep  # they are loaded after the tasks

    with store.database.atomic():
        flow = Flow.objects.using(store.alias).select_for_update().filter(id=id_).first()  # nobody forgets it meanwhile
        lock_flows(store, [id_])
        if flow is None or flow.state not in {FlowState.FAILED, FlowState.CANCELLED}:
            state = "not there" if flow is None else flow.state
            raise InvalidFlow(f"Flow {id_} is {state}: only one that has failed or was cancelled can be retried.")
        now = store.now()
        steps = FlowStep.objects.using(store.alias).filter(flow_id=id_)
        if not steps.exists():
            raise InvalidFlow(f"Flow {id_} is being deleted: it ended too long ago to be retried.")
        if steps.filter(after="[]", calls__isnull=False).exists():
            raise InvalidFlow(f"Flow {id_} was not stored completely: enqueue another one.")
        bad, again = _bad_steps(store, steps)
        _wait_again(store, again)
        members = _members(store).filter(step_id__in=bad, outcome__in=_OUTCOMES)
        if flow.deadline_at is not None:
            flow.deadline_at = now + (flow.deadline or flow.deadline_at - flow.created_at)  # a former version has none
        revived = _revive(store, members, now, flow.deadline_at)
        steps.filter(id__in=bad).update(state=StepState.RUNNING, released_at=now, ended_at=None)
        steps.filter(state=StepState.SKIPPED).update(state=StepState.WAITING)
        _check_conditions(store, steps)
        flow.ended_at, flow.outcome, flow.stopped_at = None, "", None
        flow.save(using=store.alias, update_fields=["ended_at", "outcome", "stopped_at", "deadline_at"])
        advance(store, [], [id_])
    return revived


def _check_conditions(store: Store, steps: QuerySet[FlowStep]) -> None:
    """Raises InvalidFlow if the result is gone by which a step that waits is run or skipped: it would be skipped."""
    succeeded = set(steps.filter(state=StepState.SUCCEEDED).values_list("id", flat=True))
    waiting = steps.filter(state=StepState.WAITING, runs_when__startswith=RESULT)
    for id_, name, when in waiting.values_list("id", "name", "runs_when"):
        decides = step_id(flow_of(id_), int(when.removeprefix(RESULT)))
        try:
            if decides in succeeded:
                results_of(decides, store.alias)
        except CannotRun as error:
            raise InvalidFlow(
                f"The condition of the step {name!r} can't be read: {error} So the flow can't be retried as a whole, "
                "and nothing was changed. If its dead letters are retried one by one, this step is skipped."
            ) from None


def _bad_steps(store: Store, steps: QuerySet[FlowStep]) -> tuple[list[int], list[int]]:
    """The steps (ids) that did not succeed: those whose messages run again, and those that wait for others first.

    What comes after a step that runs again, or waits again, is judged once more by how that ends. Not so if an operator
    has brought a message of it back already.
    """
    states = dict(steps.values_list("id", "state"))
    bad = {id_ for id_, state in states.items() if state in {StepState.FAILED, StepState.CANCELLED}}
    again: list[int] = []
    for id_, after in steps.filter(id__in=bad).order_by("id").values_list("id", "after"):
        before = {states[step_id(flow_of(id_), number)] for number in numbers(after)}
        if before - {StepState.SUCCEEDED} and not _lives(store, id_):
            again.append(id_)
    return sorted(bad.difference(again)), again


def _lives(store: Store, step: int) -> bool:
    from delayedq.models import Message

    return (
        Message.objects.using(store.alias)
        .filter(id__in=_members(store).filter(step_id=step).values("message_id"))
        .exists()
    )


def _wait_again(store: Store, steps: Collection[int]) -> None:
    """They get new messages when they are released. Their dead letters are none any more: no one shall retry both."""
    from delayedq.models import FlowStep

    members = _members(store).filter(step_id__in=steps)
    for some in batched(list(members.filter(outcome="failed").values_list("message_id", flat=True)), CHUNK):
        operator_store(store.alias).relabel(some, "failed", "cancelled")
    members.delete()
    rows = FlowStep.objects.using(store.alias).filter(id__in=steps)
    rows.update(state=StepState.WAITING, released_at=None, ended_at=None)


def _revive(store: Store, members: QuerySet[FlowMember], now: datetime, deadline_at: datetime | None) -> int:
    """Raises InvalidFlow if one of them is not in the history. Those that live again already are left as they are."""
    from delayedq.models import Message

    ids = list(members.order_by("message_id").values_list("message_id", flat=True))
    revived: set[int] = set()
    for some in batched(ids, CHUNK):
        for outcome in _OUTCOMES:  # an operator may have given them another one
            revived |= operator_store(store.alias).revive([Revival(id_, now) for id_ in some], outcome)
        living = Message.objects.using(store.alias).filter(id__in=some)
        if missing := set(some) - set(living.values_list("id", flat=True)):
            raise InvalidFlow(
                f"{len(missing)} of the messages that did not succeed are no longer in the history, such as "
                f"{min(missing)}: the flow can't be retried. Nothing was changed."
            )
        _members(store).filter(message_id__in=some).update(outcome=None)
        if deadline_at is not None:
            left = {STEP_DEADLINE: (deadline_at - now).total_seconds()}
            for metadata in set(living.filter(id__in=revived).values_list("metadata", flat=True)):
                living.filter(id__in=revived, metadata=metadata).update(metadata=with_own(metadata, left))
    return len(revived)


def _members(store: Store) -> QuerySet[FlowMember]:
    from delayedq.models import FlowMember

    return FlowMember.objects.using(store.alias)
