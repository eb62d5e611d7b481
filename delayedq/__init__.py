"""Delayed messages and background tasks in the project's own database."""

from delayedq.exceptions import Cancel, Retry, Snooze
from delayedq.tasks import Task, current_message, task

__all__ = ["Cancel", "Retry", "Snooze", "Task", "current_message", "task"]
__version__ = "0.1.0"
