"""Messages as `django.tasks.TaskResult`: what `enqueue` and `get_result` return, and what their errors say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from django.core import signing

from delayedq.compat import TaskResult, TaskResultDoesNotExist, task_backends
from delayedq.core.other_names import RESULTS, no_attribute
from delayedq.exceptions import CannotRun
from delayedq.results.cancelling import Cancellation, cancel
from delayedq.results.waiting import await_all, check_result, wait_all
from delayedq.store.progress import read_progress

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from delayedq.core.progress import Progress
    from delayedq.store.base import Store

    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult

SALT = "delayedq.status"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # equal as Django says
class MessageResult(AnyResult):  # type: ignore[misc]  # the stubs do not say that TaskResult is frozen
    """A TaskResult whose arguments keep their types (datetime, UUID, ...): Django's would normalize them to JSON.

    outcome: how the message ended ("succeeded", "failed", "cancelled", "expired"); None: it has not.
    """

    outcome: str | None = None

    def __post_init__(self) -> None:
        pass

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what an attribute of another framework's result does there."""
            raise no_attribute(self, name, RESULTS)

    @property
    def return_value(self) -> Any:
        """What the task returned. Raises ValueError if it did not, ReferenceGone for a row that was deleted since."""
        value = super(MessageResult, self).return_value  # a class with slots is made anew: super() knows the old one
        if isinstance(value, CannotRun):
            raise value
        return value

    def refresh(self) -> None:
        """Read it again. Raises TaskResultDoesNotExist if the message was deleted."""
        self._take(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """The async version of `refresh`."""
        self._take(await self.task.get_backend().aget_result(self.id))

    def _take(self, other: AnyResult) -> None:
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(other, name, None))

    def wait(self, timeout: timedelta | None = None) -> Self:
        """Wait until the message has ended, refresh this result, and return it.

        Raises TimeoutError after `timeout` (None: as long as it takes), and what `waiting.wait_all` raises.
        """
        wait_all([self], timeout)
        return self

    async def await_(self, timeout: timedelta | None = None) -> Self:  # noqa: ASYNC109 - as `wait`
        """The async version of `wait`."""
        await await_all([self], timeout)
        return self

    @property
    def progress(self) -> Progress | None:
        """How far the last attempt has come, read from the database; None if it has not reported anything."""
        store = getattr(self.task.get_backend(), "store", None)
        return None if store is None or not self.id else read_progress(store, int(self.id))

    @property
    def signed_id(self) -> str:
        """The id as a text for URLs that nobody can guess; see `delayedq.views.status`."""
        return signing.dumps([self.backend, self.id], salt=SALT)

    def cancel(self) -> Cancellation:
        """Cancel the message, and refresh this result; the answer says whether it waited, ran, or had ended before.

        Raises TypeError for a backend that keeps its messages elsewhere.
        """
        (answer,) = cancel_all([self])
        return answer


_REFRESHED = (
    *("status", "enqueued_at", "started_at", "finished_at", "last_attempted_at", "errors", "worker_ids"),
    *("_return_value", "outcome"),
)


def cancel_all(results: Iterable[AnyResult]) -> list[Cancellation]:
    """Cancel the messages of these results, and refresh them. Returns what happened to each, in the same order.

    What has no id was refused by a limit, and has ended. So has what was deleted, whose result stays as it is. Raises
    TypeError, and cancels nothing, for what is no result, and if the backend of one keeps its messages elsewhere.

        cancel_all([resize.enqueue(photo) for photo in photos])
    """
    given = list(results)
    for one in given:
        check_result(one, "cancelled")
    stores = {backend: _store(backend) for backend in {one.backend for one in given}}
    stored = [one for one in given if one.id]
    answers: dict[str, dict[int, Cancellation]] = {}
    for backend, store in stores.items():
        answers[backend] = cancel(store, [int(one.id) for one in stored if one.backend == backend])
    for one in stored:
        with suppress(TaskResultDoesNotExist):  # it has ended, and was deleted
            one.refresh()
    return [answers[one.backend][int(one.id)] if one.id else Cancellation.ENDED for one in given]


def _store(backend: str) -> Store:
    store: Store | None = getattr(task_backends[backend], "store", None)
    if store is None:
        raise TypeError(f"The backend {backend!r} keeps no messages in a database: there is nothing to cancel.")
    return store
