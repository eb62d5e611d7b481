"""What the messages of a task say of it in their metadata, and of who makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.metadata import DEADLINE, EXPIRES, PARENT, ROOT
from delayedq.task_options import database_of

if TYPE_CHECKING:
    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt


def own_metadata(task: Task[..., Any], known: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """As the task differs from the one that workers know; and the message that makes it, if that is in its database.

    attempt: that which makes the message; None: none, or the message has a key, so it is that of all who offer it.
    """
    lineage = {} if attempt is None else _lineage(task, attempt)
    if task is known:
        return lineage
    durations = ((EXPIRES, task.expires, known.expires), (DEADLINE, task.deadline, known.deadline))
    return lineage | {name: own.total_seconds() for name, own, theirs in durations if own is not None and own != theirs}


def _lineage(task: Task[..., Any], attempt: Attempt) -> dict[str, Any]:
    if task.backend != attempt.task.backend and database_of(task) != database_of(attempt.task):
        return {}
    return {PARENT: attempt.id, ROOT: attempt.root_id}
