"""Messages as `django.tasks.TaskResult`: what `enqueue` and `get_result` return, and what their errors say."""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.core import signing

from delayedq import clock
from delayedq.attempt_log import LENGTH
from delayedq.compat import TaskError, TaskResult, TaskResultDoesNotExist, task_backends
from delayedq.core.errors import with_error
from delayedq.core.other_names import RESULTS, no_attribute
from delayedq.exceptions import CannotRun
from delayedq.masking import error_text, masking_of
from delayedq.results.cancelling import Cancellation, cancel
from delayedq.results.waiting import await_all, check_result, wait_all
from delayedq.store.progress import read_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.attempt_log import KeptLog
    from delayedq.store.protocol import Claimed

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


# The errors of a message: the JSON record that is stored of each, and what results show of it.


#: The largest text and traceback of a stored error, in characters.
TEXT_LENGTH = 2_000

TRACEBACK_LENGTH = 20_000

#: How many errors of a chain are stored.
CHAIN_LENGTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError(TaskError):  # type: ignore[misc]  # the stubs do not say that TaskError is frozen
    """The error of one attempt.

    attempt: its number, 1 is the first. failed_at: when it ended. message: its text. chain: the classes and texts of
    what it was raised from, the nearest first. log: its last lines, and processor_seconds: what its thread took, where
    an `AttemptHandler` keeps them.
    """

    attempt: int = field(default=0, compare=False)
    failed_at: datetime | None = field(default=None, compare=False)
    message: str = field(default="", compare=False)
    chain: tuple[str, ...] = field(default=(), compare=False)
    log: tuple[str, ...] = field(default=(), compare=False)
    processor_seconds: float | None = field(default=None, compare=False)


def recorded(stored: str | None) -> list[TaskError]:
    """The errors of a message, the oldest first. `stored`: its column `errors`."""
    records = json.loads(stored) if stored else []
    return [
        AttemptError(
            exception_class_path=record["exception"],
            traceback=record["traceback"],
            attempt=record["attempt"],
            failed_at=datetime.fromisoformat(record["failed_at"]),
            message=record["message"],
            chain=tuple(record.get("chain", ())),
            log=tuple(record.get("log", ())),
            processor_seconds=record.get("processor_seconds"),
        )
        for record in records
    ]


def errors_with(
    claimed: Claimed, error: BaseException, worker: str, seconds: float | None, log: KeptLog | None = None
) -> str:
    """The JSON list of the errors of a message, with this one added. `seconds`: duration; None if nothing ran.

    `log`: what was kept of the attempt; None: nothing is.
    """
    mask = error_text(claimed.kind, claimed.payload)
    return with_error(
        claimed.errors,
        attempt=claimed.attempt,
        failed_at=clock.now(),
        seconds=seconds,
        worker=worker,
        exception=path_of(error),
        message=text_of(error, mask),
        chain=chain_of(error, mask),
        traceback=mask(trace_of(error))[-TRACEBACK_LENGTH:],
        log=[_cut(mask(line)) for line in log.lines] if log else (),
        processor_seconds=log.processor_seconds if log else None,
    )


def _cut(line: str) -> str:
    """On one line, of LENGTH characters at most."""
    line = line.replace("\n", " ")
    return line if len(line) <= LENGTH else f"{line[: LENGTH - 1]}…"


def task_error(error: BaseException, mask: Callable[[str], str] = str) -> TaskError:
    """`mask` is `masking.error_text` of its message."""
    return AttemptError(
        exception_class_path=path_of(error),
        traceback=mask(trace_of(error)),
        message=text_of(error, mask),
        chain=tuple(chain_of(error, mask)),
    )


def masked_trace(claimed: Claimed, error: BaseException | None) -> str:
    """The traceback of an error as it may be logged, if something of the message is masked; else ""."""
    if error is None or masking_of(claimed.kind) is None:
        return ""
    return error_text(claimed.kind, claimed.payload)(trace_of(error))


def path_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def chain_of(error: BaseException, mask: Callable[[str], str] = str) -> list[str]:
    """What an error was raised from, or while it was handled: classes and texts, the nearest first."""
    chain: list[str] = []
    seen = {id(error)}
    while len(chain) < CHAIN_LENGTH:
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None or id(following) in seen:
            break
        error = following
        seen.add(id(error))
        chain.append(f"{path_of(error)}: {text_of(error, mask)}")
    return chain


def trace_of(error: BaseException) -> str:
    """Its traceback; without one if that can't be formatted, as of errors that are nested too deep."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - what a user's exception has may raise anything
        return f"{path_of(error)}: <its traceback can't be printed>\n"


def text_of(error: object, mask: Callable[[str], str] = str) -> str:
    """`str(error)`, masked by `mask`, then cut to TEXT_LENGTH."""
    try:
        text = mask(str(error))
    except Exception:  # noqa: BLE001 - __str__ of a user's exception may raise anything
        text = "<it can't be printed>"
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…"
