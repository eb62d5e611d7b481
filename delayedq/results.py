"""The JSON error record that messages store, and messages as `django.tasks.TaskResult`."""

from __future__ import annotations

import json
import traceback
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from delayedq import clock
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResultStatus
from delayedq.core.error_records import known_errors, with_error
from delayedq.core.lifecycle import Outcome, Returned
from delayedq.core.serialization import load_call, loads
from delayedq.exceptions import CannotRun, QueueFull, UnknownTask
from delayedq.masking import error_text, masking_of
from delayedq.message_result import AttemptError, MessageResult
from delayedq.tasks import Task, task_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.compat import TaskError, TaskResult
    from delayedq.models import FinishedMessage, Message
    from delayedq.store.protocol import Claimed
    from delayedq.worker.attempt import Attempt

    AnyResult = TaskResult[..., Any]


#: The largest text and traceback of a stored error, in characters.
TEXT_LENGTH = 2_000
TRACEBACK_LENGTH = 20_000
#: How many errors of a chain are stored.
CHAIN_LENGTH = 5


def running(attempt: Attempt, args: Any, kwargs: Any) -> AnyResult:
    """The result that the signals and the TaskContext of a running task get."""
    claimed, now = attempt.claimed, clock.now()
    task = attempt.task.as_stored(claimed)
    return make(
        task,
        claimed.id,
        TaskResultStatus.RUNNING,
        args,
        kwargs,
        task.backend,
        enqueued_at=claimed.created_at,
        started_at=_first_start(claimed.errors) or now,
        last_attempted_at=now,
        errors=errors(claimed.errors),
        worker_ids=workers(claimed.errors, claimed.attempt, attempt.worker),
    )


def dropped(task: Task[..., Any], args: Any, kwargs: Any, backend: str) -> AnyResult:
    """The result of an offer that was not stored, as a limit of the task has reached its size. It has no id."""
    error = QueueFull(f"A limit of {task.name} has reached its size: nothing was stored.")
    failed, errors = TaskResultStatus.FAILED, [task_error(error)]
    moment = clock.now()
    return make(task, "", failed, args, kwargs, backend, enqueued_at=None, finished_at=moment, errors=errors)


def end(
    result: AnyResult, outcome: Outcome, error: BaseException | None, value: object, claimed: Claimed | None = None
) -> None:
    """Set how the message ended. `claimed`: the message, whose secrets are masked in the error."""
    succeeded = isinstance(outcome, Returned)
    if error is not None:
        mask = str if claimed is None else error_text(claimed.kind, claimed.payload)
        result.errors.append(task_error(error, mask))
    object.__setattr__(result, "finished_at", clock.now())
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED)


def not_started(attempt: Attempt, outcome: Outcome, error: BaseException | None, *, counted: bool) -> AnyResult:
    """The result of a message that a worker ends and could not start: its task is unknown, its workers vanished, ...

    counted: the claim that ends it counts as an attempt.
    """
    claimed = attempt.claimed
    task = _task(claimed, attempt.task.backend if attempt.is_known else DEFAULT_TASK_BACKEND_ALIAS)
    starts, attempts = _starts(claimed.errors), claimed.attempt - 1 + counted
    result = make(
        task,
        claimed.id,
        TaskResultStatus.FAILED,
        *_arguments(claimed.payload),
        task.backend,
        enqueued_at=claimed.created_at,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        errors=errors(claimed.errors),
        worker_ids=workers(claimed.errors, attempts, attempt.worker if counted else ""),
    )
    end(result, outcome, error, None, claimed)
    return result


def of_live(message: Message, backend: str, *, leased: bool) -> AnyResult:
    """The result of a live message. `leased`: its lease has not expired.

    An attempt that has not ended started when it was claimed, to within the second or so that it may have waited for a
    thread; one that has ended started when its error record says.
    """
    args, kwargs = _arguments(message.payload)
    starts = _starts(message.errors)
    if message.lease_token is not None and message.claimed_at is not None:
        starts.append(message.claimed_at)
    return make(
        _task(message, backend),
        message.id,
        TaskResultStatus.RUNNING if leased else TaskResultStatus.READY,
        args,
        kwargs,
        backend,
        enqueued_at=message.created_at,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        errors=errors(message.errors),
        worker_ids=workers(message.errors, message.attempt, message.leased_by or ""),
    )


def of_ended(message: FinishedMessage, backend: str) -> AnyResult:
    """The result of a message in the history."""
    args, kwargs = _arguments(message.payload)
    result = make(
        _task(message, backend),
        message.id,
        TaskResultStatus.SUCCESSFUL if message.outcome == "succeeded" else TaskResultStatus.FAILED,
        args,
        kwargs,
        backend,
        enqueued_at=message.created_at,
        started_at=_first_start(message.errors) or message.started_at,
        finished_at=message.finished_at,
        last_attempted_at=message.started_at,
        errors=errors(message.errors),
        worker_ids=workers(message.errors, message.attempts, message.worker or ""),
    )
    object.__setattr__(result, "_return_value", None if message.result is None else _return_value(message.result))
    object.__setattr__(result, "outcome", message.outcome)
    return result


def _return_value(text: str) -> Any:
    """The value; of one that can't be read any more, the error that says why: see `MessageResult.return_value`."""
    try:
        return loads(text)
    except CannotRun as error:
        return error


def make(
    task: Task[..., Any],
    id_: int | str | None,
    status: TaskResultStatus,
    args: Any,
    kwargs: Any,
    backend: str,
    *,
    enqueued_at: datetime | None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    last_attempted_at: datetime | None = None,
    errors: list[TaskError] | None = None,
    worker_ids: list[str] | None = None,
) -> AnyResult:
    return MessageResult(
        task=task,
        id=str(id_),
        status=status,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=finished_at,
        last_attempted_at=last_attempted_at,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=errors or [],
        worker_ids=worker_ids or [],
    )


def _task(message: Message | FinishedMessage | Claimed, backend: str) -> Task[..., Any]:
    try:
        task = task_at(message.kind)
    except UnknownTask:
        task = _unregistered(message.kind)
    return task.as_stored(message, backend)


def _unregistered(path: str) -> Task[..., Any]:
    """A stand-in for a task that is not registered, so that results of its messages can be shown."""

    def gone(*_: Any, **__: Any) -> Any:
        return task_at(path)  # raises UnknownTask

    gone.__module__, _, gone.__name__ = path.rpartition(".")
    gone.__qualname__ = gone.__name__
    task: Task[..., Any] = object.__new__(Task)
    for each in fields(Task):
        value = each.default if each.default is not MISSING else None
        object.__setattr__(task, each.name, gone if each.name == "func" else value)
    return task


def _arguments(payload: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a message; empty if they can't be read any more, so that its result is still available."""
    try:
        return load_call(payload)
    except CannotRun:
        return [], {}


def _starts(stored: str | None) -> list[datetime]:
    """When the attempts of the error records started, the oldest first."""
    return [
        datetime.fromisoformat(record["failed_at"]) - timedelta(seconds=record["seconds"])
        for record in known_errors(stored)
        if record["seconds"] is not None
    ]


def _first_start(stored: str | None) -> datetime | None:
    """When the first attempt whose start is known started; older ones may have died, or their records been dropped."""
    starts = _starts(stored)
    return starts[0] if starts else None


def errors(stored: str | None) -> list[TaskError]:
    records = json.loads(stored) if stored else []
    return [
        AttemptError(
            exception_class_path=record["exception"],
            traceback=record["traceback"],
            attempt=record["attempt"],
            failed_at=datetime.fromisoformat(record["failed_at"]),
            message=record["message"],
            chain=tuple(record.get("chain", ())),
        )
        for record in records
    ]


def workers(stored: str | None, attempts: int, last: str) -> list[str]:
    """The name of the worker of each attempt; "" for attempts whose process died without recording it.

    A worker that gave the message up without starting it has recorded an error, but made no attempt.
    """
    known = [record.get("worker") or "" for record in known_errors(stored) if record["attempt"] <= attempts]
    if last and len(known) < attempts:
        known.append(last)
    return [""] * (attempts - len(known)) + known


def errors_with(claimed: Claimed, error: BaseException, worker: str, seconds: float | None) -> str:
    """The JSON list of the errors of a message, with this one added. `seconds`: duration; None if nothing ran."""
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
    )


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
    return "".join(traceback.format_exception(error))


def text_of(error: object, mask: Callable[[str], str] = str) -> str:
    """`str(error)`, masked by `mask`, then cut to TEXT_LENGTH."""
    try:
        text = mask(str(error))
    except Exception:  # noqa: BLE001 - __str__ of a user's exception may raise anything
        text = "<it can't be printed>"
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…"
