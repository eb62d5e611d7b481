"""The message that this code was started for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayedq.worker.attempt import Attempt

current_attempt: ContextVar[Attempt | None] = ContextVar("delayedq_current_attempt", default=None)


def current_message() -> Attempt:
    """Return the message that the calling task was started for. Raises LookupError outside of a task."""
    attempt = current_attempt.get()
    if attempt is None:
        raise LookupError("There is no current message: this code was not started by a worker.")
    return attempt
