"""Messages as `django.tasks.TaskResult`: live ones, ended ones, and those that a worker runs or gives up."""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from delayedq import clock
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResultStatus
from delayedq.core.errors import known_errors
from delayedq.core.lifecycle import FinalOutcome, Outcome, final_outcome
from delayedq.core.serialization import load_call, loads
from delayedq.exceptions import CannotRun, QueueFull, UnknownTask
from delayedq.masking import error_text
from delayedq.results.message import MessageResult, recorded, task_error
from delayedq.tasks import Task, task_at

if TYPE_CHECKING:
    from delayedq.compat import TaskError, TaskResult
    from delayedq.models import FinishedMessage, Message
    from delayedq.store.protocol import Claimed
    from delayedq.worker.attempt import Attempt

    AnyResult = TaskResult[..., Any]


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
        errors=recorded(claimed.errors),
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
    ended = final_outcome(outcome)
    succeeded = ended is FinalOutcome.SUCCEEDED
    if error is not None:
        mask = str if claimed is None else error_text(claimed.kind, claimed.payload)
        result.errors.append(task_error(error, mask))
    object.__setattr__(result, "finished_at", clock.now())
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "outcome", str(ended))
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
        errors=recorded(claimed.errors),
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
        errors=recorded(message.errors),
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
        errors=recorded(message.errors),
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


def workers(stored: str | None, attempts: int, last: str) -> list[str]:
    """The name of the worker of each attempt; "" for attempts whose process died without recording it.

    A worker that gave the message up without starting it has recorded an error, but made no attempt.
    """
    known = [record.get("worker") or "" for record in known_errors(stored) if record["attempt"] <= attempts]
    if last and len(known) < attempts:
        known.append(last)
    return [""] * (attempts - len(known)) + known
