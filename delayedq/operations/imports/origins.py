"""The frameworks whose waiting messages can be moved here, each read through its own models."""

from __future__ import annotations

from datetime import MAXYEAR
from typing import TYPE_CHECKING, Any

from delayedq import clock
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.operations.imports.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import QuerySet


class DjangoTasksDb:
    """django-tasks-db."""

    app = "django_tasks_db"
    model = "DBTaskResult"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="READY")

    def as_waiting(self, row: Any) -> Waiting:
        given = row.args_kwargs
        at = None if row.run_after.year == MAXYEAR else row.run_after  # its sign of "at once"
        options = {"priority": row.priority, "queue_name": row.queue_name}
        return Waiting(row.pk, row.task_path, given["args"], given["kwargs"], at or row.enqueued_at, options=options)


class DjangoOx:
    """django-ox. A message that failed there before keeps the attempts that are left."""

    app = "django_ox"
    model = "OxTask"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="READY")

    def as_waiting(self, row: Any) -> Waiting:
        options = {
            "priority": row.priority,
            "queue_name": row.queue_name,
            "max_attempts": max(1, row.max_attempts - row.attempts),
        }
        at = row.run_after or row.enqueued_at
        return Waiting(row.pk, row.task_path, row.args, row.kwargs, at, options=options)


class Procrastinate:
    """procrastinate, by its Django app. A queueing lock becomes the key, and a lock the channel."""

    app = "procrastinate.contrib.django"
    model = "ProcrastinateJob"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="todo")

    def as_waiting(self, row: Any) -> Waiting:
        priority = min(max(row.priority, LOWEST_PRIORITY), HIGHEST_PRIORITY)
        options: dict[str, Any] = {"priority": priority, "queue_name": row.queue_name}
        if row.lock is not None:
            options["channel"] = row.lock
        return Waiting(
            row.pk, row.task_name, (), row.args, row.scheduled_at, row.queueing_lock or None, options=options
        )


class DjangoQ:
    """django-q2 with its ORM broker. What it stores is signed, and is read by its own function."""

    app = "django_q"
    model = "OrmQ"
    #: What has no equal here, and changes what happens.
    _WITHOUT_EQUAL = ("hook", "chain", "iter_count", "iter_cached")

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(lock__lte=clock.now())

    def as_waiting(self, row: Any) -> Waiting:
        given: Mapping[str, Any] = row.task
        function = given.get("func")
        if function is None:
            return Waiting(row.pk, "?", problem=f"Its payload can't be read: {given['id']}.")
        path = function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"
        lost = [name for name in self._WITHOUT_EQUAL if given.get(name)]
        problem = f"It has {', '.join(lost)}, which has no equal here." if lost else ""
        return Waiting(row.pk, path, given["args"], given["kwargs"], row.lock, problem=problem)
