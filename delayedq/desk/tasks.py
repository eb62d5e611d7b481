"""The record of decisions: each is a message, in the history and in the lake when a worker has ended it."""

from __future__ import annotations

from typing import Any

from delayedq.tasks import task


@task
def decided(**decision: Any) -> dict[str, Any]:
    """Does nothing but to be recorded: its arguments say which message was decided by whom, what the handler had
    decided, the right answer if it was known before, and whether the handler agrees.
    """
    return {name: decision[name] for name in ("message_id", "verb", "agreed") if name in decision}
