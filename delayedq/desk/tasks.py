"""Records of decisions, and of modes: messages, in the history and in the lake when a worker has ended them.

Each goes to the backend and the queue of the task that it is about.
"""

from __future__ import annotations

from typing import Any

from delayedq.backend import somewhere
from delayedq.tasks import task


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
