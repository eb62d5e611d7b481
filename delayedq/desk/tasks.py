"""Records of decisions, and of modes: messages, in the history and in the lake when a worker has ended them."""

from __future__ import annotations

from typing import Any

from delayedq.backend import OfferingBackend
from delayedq.compat import DEFAULT_TASK_QUEUE_NAME, InvalidTaskBackend, task_backends
from delayedq.tasks import task


def somewhere() -> dict[str, Any]:
    """A backend of delayedq and a queue that it has, which may not be those called "default".

    Each record goes to the backend and the queue of the task that it is about.
    """
    for backend in filter(None, map(_ours, task_backends)):
        queues = {str(name) for name in backend.queues}
        has_default = not queues or DEFAULT_TASK_QUEUE_NAME in queues
        return {"backend": backend.alias, "queue_name": DEFAULT_TASK_QUEUE_NAME if has_default else min(queues)}
    return {}  # as in tests of a project, where a backend of Django calls tasks at once


def _ours(alias: str) -> OfferingBackend | None:
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend:  # of which `task` tells more
        return None
    return backend if isinstance(backend, OfferingBackend) else None


@task(**somewhere())
def decided(**decision: Any) -> dict[str, Any]:
    """Does nothing but to be recorded: its arguments say which message was decided by whom, what the handler had
    decided, the right answer if it was known before, and whether the handler agrees.
    """
    return {name: decision[name] for name in ("message_id", "verb", "agreed") if name in decision}


@task(**somewhere())
def mode_set(**change: Any) -> None:
    """Does nothing but to be recorded: its arguments say who (`by`) has set the mode (`mode`) of a task (`task`), and
    what it was before (`before`).
    """
