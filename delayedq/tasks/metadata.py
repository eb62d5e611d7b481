"""What the messages of a task say of it and of who makes them: their part of the metadata, and what is read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.channels import channel_of, shown_priority
from delayedq.core.metadata import DEADLINE, EXPIRES, PARENT, ROOT, as_given, shortest_deadline, stored_duration
from delayedq.core.serialization import loads
from delayedq.tasks.options import database_of

if TYPE_CHECKING:
    from delayedq.tasks.scheduling import StoredOptions
    from delayedq.tasks.verbs import Task
    from delayedq.worker.attempt import Attempt


def own_metadata(task: Task[..., Any], known: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """How it differs from the task that workers know, and which attempt makes the message."""
    lineage = _lineage(task, attempt)
    if task is known:
        return lineage
    durations = ((EXPIRES, task.expires, known.expires), (DEADLINE, task.deadline, known.deadline))
    return lineage | {name: own.total_seconds() for name, own, theirs in durations if own is not None and own != theirs}


def stored_options(task: Task[..., Any], row: StoredOptions) -> dict[str, Any]:
    """The options of the task that a message (a row, or what was claimed) has."""
    moved = row.scheduled_at_initially != row.created_at
    return {
        "queue_name": row.queue,
        "priority": shown_priority(row.priority),
        "max_attempts": row.max_attempts,
        "metadata": None if (metadata := as_given(row.metadata)) is None else loads(metadata),
        "deadline": shortest_deadline(row.metadata, task.deadline),
        "expires": stored_duration(row.metadata, EXPIRES, task.expires),
        "channel_name": channel_of(row.metadata),
        "run_after": row.scheduled_at_initially if moved else None,
    }


def _lineage(task: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """The parent is one of the same database, or none."""
    if attempt is None or (task.backend != attempt.task.backend and database_of(task) != database_of(attempt.task)):
        return {}
    return {PARENT: attempt.id, ROOT: attempt.root_id}
