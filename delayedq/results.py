"""The errors that a message carries, and its `django.tasks` view: a TaskResult, made where somebody asks for one."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.tasks import TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone

from delayedq.core.lifecycle import Outcome, Returned

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.store.protocol import Claimed
    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt

    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult


#: An error takes at most so many characters of text and of traceback, and a message carries at most so many errors.
TEXT_LENGTH = 2_000
TRACEBACK_LENGTH = 20_000
ERRORS_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageResult(AnyResult):  # type: ignore[misc]  # the stubs do not say that TaskResult is frozen
    """A TaskResult whose arguments are as rich as ours: nothing is normalized to plain JSON."""

    def __post_init__(self) -> None:
        pass


def running(attempt: Attempt, args: Any, kwargs: Any) -> AnyResult:
    """What the signals and the context of a running task carry."""
    claimed, now = attempt.claimed, timezone.now()
    return make(
        attempt.task,
        claimed.id,
        TaskResultStatus.RUNNING,
        args,
        kwargs,
        enqueued_at=claimed.created_at,
        started_at=now,
        last_attempted_at=now,
        errors=errors(claimed.errors),
        worker_ids=workers(claimed.errors, claimed.attempt, attempt.worker),
    )


def end(result: AnyResult, outcome: Outcome, error: BaseException | None, value: object) -> None:
    """Fill in how the attempt ended. One that will be tried again is FAILED for the signal's receivers."""
    succeeded = isinstance(outcome, Returned)
    if error is not None:
        result.errors.append(TaskError(exception_class_path=path_of(error), traceback=trace_of(error)))
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED)


def make(
    task: Task[..., Any],
    id_: int | None,
    status: TaskResultStatus,
    args: Any,
    kwargs: Any,
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
        backend=task.backend,
        errors=errors or [],
        worker_ids=worker_ids or [],
    )


def errors(stored: str | None) -> list[TaskError]:
    records = json.loads(stored) if stored else []
    return [TaskError(exception_class_path=r["exception"], traceback=r["traceback"]) for r in records]


def workers(stored: str | None, attempts: int, last: str) -> list[str]:
    """One worker per attempt; attempts that ended without a word have no known one."""
    known = [record["worker"] for record in json.loads(stored)] if stored else []
    if last and len(known) < attempts:
        known.append(last)
    return [""] * (attempts - len(known)) + known


def errors_with(claimed: Claimed, error: BaseException, worker: str, seconds: float | None) -> str:
    """The list of errors that the message carries, with this one; `seconds` None: nothing ran."""
    record = {
        "attempt": claimed.attempt,
        "failed_at": timezone.now().isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "worker": worker,
        "exception": path_of(error),
        "message": text_of(error),
        "traceback": trace_of(error)[-TRACEBACK_LENGTH:],
    }
    return json.dumps([*known_errors(claimed), record][-ERRORS_KEPT:])


def known_errors(claimed: Claimed) -> list[dict[str, Any]]:
    try:
        known = json.loads(claimed.errors) if claimed.errors else []
        return [record for record in known if isinstance(record["attempt"], int)]
    except (ValueError, TypeError, LookupError):
        return []  # somebody wrote something else there; what follows counts all the same


def path_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def text_of(error: object) -> str:
    """What the error says of itself, cut to a length that can be stored and logged."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  it is somebody else's code
        text = "<it can't be printed>"
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…"
