"""A stored flow: what it does, how to wait for it, to cancel it and to retry it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from asgiref.sync import sync_to_async
from django.db import transaction

from delayedq.async_versions import async_version
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from delayedq.core.metadata import STEP_DEADLINE, with_own
from delayedq.core.other_names import FLOWS, no_attribute
from delayedq.exceptions import CannotRun, InvalidFlow
from delayedq.flows.ending import advance, lock_flows
from delayedq.flows.rules import RESULT, FlowState, StepState, flow_of, numbers, step_id
from delayedq.flows.step_results import results_of
from delayedq.flows.sweeping import stop_flow
from delayedq.results.waiting import FIRST, GROWTH, LONGEST, check_outside_of_transactions, check_timeout
from delayedq.store import operator_store
from delayedq.store.operator import Revival

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from delayedq.models import Flow, FlowMember, FlowStep
    from delayedq.store.base import Store

# A failed or cancelled flow goes on: what did not succeed runs once more, and what was skipped waits again.


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


# Result


class StepStatus(NamedTuple):
    """A step of a stored flow. `size`: how many messages it has, or will have."""

    name: str
    state: StepState
    size: int
    released_at: datetime | None
    ended_at: datetime | None


class FlowResult:
    """A stored flow. What it tells is read from the database when it is asked.

    id: of the flow, an int. backend: the alias of the backend of its tasks.
    """

    def __init__(self, id_: int, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
        self.id = id_
        self.backend = backend

    def __repr__(self) -> str:
        return f"<flow {self.id}>"

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another framework does there."""
            raise no_attribute(self, name, FLOWS)

    @property
    def store(self) -> Store:
        """That of its backend."""
        store: Store = getattr(task_backends[self.backend], "store")  # noqa: B009 - of our backend
        return store

    @property
    def state(self) -> FlowState:
        """Whether it is "running", "succeeded", "failed" or "cancelled". Raises InvalidFlow if it was deleted."""
        return self._row().state

    def _row(self) -> Flow:
        from delayedq.models import Flow  # a project that has forgotten the app is told so by its checks

        row = Flow.objects.using(self.store.alias).filter(id=self.id).first()
        if row is None:
            raise InvalidFlow(f"There is no flow {self.id} in the database {self.store.alias!r}.")
        return row

    def steps(self) -> list[StepStatus]:
        """Its steps, each after those that it waits for."""
        from delayedq.models import FlowStep

        rows = FlowStep.objects.using(self.store.alias).filter(flow_id=self.id).order_by("id")
        return [
            StepStatus(row.name, StepState(row.state), row.size, row.released_at, row.ended_at)
            for row in rows.defer("calls")
        ]

    def result(self, step: str | None = None) -> Any:
        """The return value of a step (None: of the last one); of a group, the list of those of its members.

        None stands for what has not succeeded. Raises InvalidFlow for an unknown step, ReferenceGone if its history was
        deleted or archived.
        """
        from delayedq.models import FlowStep

        rows = FlowStep.objects.using(self.store.alias).filter(flow_id=self.id).order_by("id")
        found = (rows if step is None else rows.filter(name=step)).last()
        if found is None:
            raise InvalidFlow(f"The flow {self.id} has no step {step!r}.")
        values = results_of(found.pk, self.store.alias)
        return values if found.is_group else next(iter(values), None)

    def wait(self, timeout: timedelta | None = None) -> Self:
        """Wait until the flow has ended, and return this.

        Raises TimeoutError after `timeout` (None: as long as it takes), RuntimeError in a transaction, in which its end
        may not be seen.
        """
        for pause in _pauses(timeout, self):
            time.sleep(pause)
        return self

    async def await_(self, timeout: timedelta | None = None) -> Self:  # noqa: ASYNC109 - as `wait`
        """The async version of `wait`."""
        pauses = _pauses(timeout, self)
        while (pause := await sync_to_async(_next)(pauses)) is not None:  # noqa: ASYNC110 - others end it
            await asyncio.sleep(pause)
        return self

    def cancel(self) -> bool:
        """Cancel the flow, with the caller's transaction: when that has committed, nothing of it is claimed any more.

        What runs, or was claimed, is told, as by `TaskResult.cancel`. Returns False if it had ended, or was cancelled
        before.
        """
        return cancel_flow(self.store, self.id)

    def retry(self) -> int:
        """Run what did not succeed of a failed or cancelled flow once more, and then what was skipped.

        A step that failed after another one which did not succeed waits for that again, and then gets new messages.
        Returns how many messages run again at once. Raises InvalidFlow, and changes nothing, if the flow runs or has
        succeeded, or if the history of such a message was deleted or archived.
        """
        return retry_flow(self.store, self.id)

    acancel = async_version(cancel)
    aretry = async_version(retry)
    asteps = async_version(steps)
    aresult = async_version(result)


def get_flow(id_: int | str, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> FlowResult:
    """The stored flow with this id, as `on_failure` gets it. Raises InvalidFlow if there is none."""
    try:
        found = FlowResult(int(id_), backend)
    except (TypeError, ValueError):
        raise InvalidFlow(f"The id of a flow is a number, not {id_!r}.") from None
    found.state  # noqa: B018 - it must be there
    return found


def cancel_flow(store: Store, id_: int) -> bool:
    """See `FlowResult.cancel`. Its messages are cancelled after the commit; if that fails, by the next sweep."""
    from delayedq.models import Flow

    going = Flow.objects.using(store.alias).filter(id=id_, ended_at=None, stopped_at=None)
    if not going.update(stopped_at=store.now()):
        return False
    transaction.on_commit(partial(stop_flow, store, id_), using=store.alias, robust=True)
    return True


def _next(pauses: Iterator[float]) -> float | None:
    return next(pauses, None)


def _pauses(timeout: timedelta | None, flow: FlowResult) -> Iterator[float]:
    """How long to sleep before each question, until the flow has ended."""
    check_timeout(timeout)
    give_up_at = None if timeout is None else time.monotonic() + timeout.total_seconds()
    pause = FIRST
    while flow.state == FlowState.RUNNING:
        check_outside_of_transactions(flow.store)
        left = LONGEST if give_up_at is None else give_up_at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Flow {flow.id} did not end within the timeout.")
        yield min(pause, left)
        pause = min(LONGEST, pause * GROWTH)
