"""Tasks: functions that workers run. `task` is the decorator and `Task` the class, which has the verbs that enqueue."""

from __future__ import annotations

from delayedq.tasks.current import current_attempt, current_message
from delayedq.tasks.registry import registered, task_at
from delayedq.tasks.verbs import Task, parameters_of, task

__all__ = ["Task", "current_attempt", "current_message", "parameters_of", "registered", "task", "task_at"]
