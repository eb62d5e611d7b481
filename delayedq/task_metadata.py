"""What the messages of a task say beside what the task was given: see `core.metadata`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.metadata import DEADLINE, EXPIRES, PARENT, ROOT
from delayedq.task_options import database_of

if TYPE_CHECKING:
    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt


def own_metadata(task: Task[..., Any], known: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """How it differs from the task that workers know, and which attempt makes the message."""
    lineage = _lineage(task, attempt)
    if task is known:
        return lineage
    durations = ((EXPIRES, task.expires, known.expires), (DEADLINE, task.deadline, known.deadline))
    return lineage | {name: own.total_seconds() for name, own, theirs in durations if own is not None and own != theirs}


def _lineage(task: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """The parent is one of the same database, or none."""
    if attempt is None or (task.backend != attempt.task.backend and database_of(task) != database_of(attempt.task)):
        return {}
    return {PARENT: attempt.id, ROOT: attempt.root_id}
