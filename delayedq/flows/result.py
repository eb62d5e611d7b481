"""A stored flow: what it does, how to wait for it, to cancel it and to retry it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from asgiref.sync import sync_to_async
from django.db import transaction

from delayedq.async_versions import async_version
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from delayedq.core.flows import FlowState, StepState
from delayedq.core.other_names import FLOWS, no_attribute
from delayedq.exceptions import InvalidFlow
from delayedq.flows.retrying import retry_flow
from delayedq.flows.sweeping import stop_flow
from delayedq.results.waiting import FIRST, GROWTH, LONGEST, check_outside_of_transactions, check_timeout
from delayedq.store.flows.results import results_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from delayedq.models import Flow
    from delayedq.store.base import Store


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
