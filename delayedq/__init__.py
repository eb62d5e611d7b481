"""Delayed messages and background tasks in the project's own database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from delayedq.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from delayedq.queue import Acknowledgement, BatchedMessage, DelayedQueue, Envelope, History, Topic
    from delayedq.store.protocol import OfferOutcome
    from delayedq.tasks import Scheduled, Task, current_message, task

__all__ = [
    "Acknowledgement",
    "BatchedMessage",
    "Cancel",
    "DelayedQueue",
    "Envelope",
    "History",
    "OfferOutcome",
    "Retry",
    "Scheduled",
    "Snooze",
    "Task",
    "Topic",
    "current_message",
    "task",
]
__version__ = "0.1.0"

_OF_QUEUES = {"Acknowledgement", "BatchedMessage", "DelayedQueue", "Envelope", "History", "Topic"}


def __getattr__(name: str) -> Any:
    """Tasks and queues are loaded when they are asked for: what imports only `delayedq.core` needs no Django."""
    if name not in __all__:
        raise AttributeError(f"module 'delayedq' has no attribute {name!r}")
    return getattr(import_module("delayedq.queue" if name in _OF_QUEUES else "delayedq.tasks"), name)
