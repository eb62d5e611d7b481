"""The `django.tasks` backend: `TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from delayedq import results
from delayedq.core.serialization import load_call, loads
from delayedq.exceptions import CannotRun
from delayedq.signals import wanted
from delayedq.store import default_store
from delayedq.tasks import Task, task_at

if TYPE_CHECKING:
    from delayedq.models import FinishedMessage, Message

    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult


class DelayedQBackend(BaseTaskBackend):
    """Keeps tasks in the project's database. It takes no OPTIONS."""

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if self.options:
            path = f"TASKS[{alias!r}]['OPTIONS'][{next(iter(self.options))!r}]"
            raise ImproperlyConfigured(f"{path} is unknown; the backend takes no options.")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        offered = default_store().offer(task.offer(args, kwargs, when=task.run_after))
        result = results.make(task, offered.id, TaskResultStatus.READY, args, kwargs, enqueued_at=timezone.now())
        if wanted(task_enqueued, logging.DEBUG):
            task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        from delayedq.models import FinishedMessage, Message

        try:
            id_ = int(result_id)
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        if live := Message.objects.filter(id=id_).first():
            return _live_result(live)
        if ended := FinishedMessage.objects.filter(id=id_).first():
            return _ended_result(ended)
        raise TaskResultDoesNotExist(result_id)


def _live_result(message: Message) -> AnyResult:
    leased = message.lease_token is not None
    args, kwargs = _arguments(message.payload)
    return results.make(
        task_at(message.kind),
        message.id,
        TaskResultStatus.RUNNING if leased else TaskResultStatus.READY,
        args,
        kwargs,
        enqueued_at=message.created_at,
        errors=results.errors(message.errors),
        worker_ids=results.workers(message.errors, message.attempt, message.leased_by or ""),
    )


def _ended_result(message: FinishedMessage) -> AnyResult:
    from delayedq.models import Outcome

    succeeded = message.outcome == Outcome.SUCCEEDED
    args, kwargs = _arguments(message.payload)
    result = results.make(
        task_at(message.kind),
        message.id,
        TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED,
        args,
        kwargs,
        enqueued_at=message.created_at,
        started_at=message.started_at,
        finished_at=message.finished_at,
        last_attempted_at=message.started_at,
        errors=results.errors(message.errors),
        worker_ids=results.workers(message.errors, message.attempts, message.worker or ""),
    )
    object.__setattr__(result, "_return_value", None if message.result is None else loads(message.result))
    return result


def _arguments(payload: str) -> tuple[list[Any], dict[str, Any]]:
    """Empty if they can't be read any more: how a message ended can be told all the same."""
    try:
        return load_call(payload)
    except CannotRun:
        return [], {}
