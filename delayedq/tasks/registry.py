"""The tasks that are registered, by their paths: only they are run."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from delayedq.exceptions import UnknownTask

if TYPE_CHECKING:
    from delayedq.tasks.base import BaseTask
    from delayedq.tasks.verbs import Task

registered: dict[str, Task[..., Any]] = {}
#: Two functions that were registered under one path, the later one last: where each is defined.
doubled: dict[str, tuple[str, str]] = {}


def register(task: Task[..., Any]) -> None:
    """Register it under its path and aliases. Another function that was there is noted in `doubled`."""
    for path in (task.module_path, *task.aliases):
        known = registered.get(path)
        if known is not None and known.func is task.func:
            continue
        if known is not None and _place(known) != _place(task):
            doubled[path] = _place(known), _place(task)
        registered[path] = task


def _place(task: BaseTask) -> str:
    code = inspect.unwrap(task.func).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def task_at(path: str) -> Task[..., Any]:
    """Return the task that is registered under this path (`"app.tasks.name"`). Raises UnknownTask.

    Paths are looked up and never imported, so that a row in the database can't name other code.
    """
    try:
        return registered[path]
    except KeyError:
        raise unknown_task(path) from None


def unknown_task(path: str) -> UnknownTask:
    """The error that says where tasks are found."""
    return UnknownTask(
        f"No task is registered as {path!r}. Tasks are found in the tasks.py of each installed app; "
        "import other modules that define tasks in AppConfig.ready()."
    )
