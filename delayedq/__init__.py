"""Delayed messages and background tasks in the project's own database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from delayedq.store.protocol import OfferOutcome
    from delayedq.tasks import Scheduled, Task, current_message, task

__all__ = ["Cancel", "OfferOutcome", "Retry", "Scheduled", "Snooze", "Task", "current_message", "task"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Tasks are loaded when they are asked for: what imports only `delayedq.core` needs no Django."""
    if name not in __all__:
        raise AttributeError(f"module 'delayedq' has no attribute {name!r}")
    from delayedq import tasks

    return getattr(tasks, name)
