"""What the options of a task may be."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from delayedq.compat import InvalidTask
from delayedq.core.serialization import dumps
from delayedq.exceptions import NotStorable
from delayedq.store.protocol import BARE
from delayedq.task_channels import check_limited
from delayedq.task_defaults import check_backoff, check_max_attempts, check_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.tasks import Task


def check_options(task: Task[..., Any], others: Iterable[Task[..., Any]]) -> None:
    """Raises InvalidTask for what no task can have; `others` are those that are registered."""
    if not task.func.__qualname__.isidentifier():
        raise InvalidTask(f"{task.func.__qualname__} must be defined at module level.")
    if BARE in str(task.queue_name):
        raise InvalidTask(f"{task.name}: a task's queue has no {BARE!r} in its name: {task.queue_name!r}.")
    if task.exactly_once and inspect.iscoroutinefunction(task.func):
        raise InvalidTask(f"{task.name}: exactly_once needs a sync function, since transactions are sync.")
    for name, check in (
        ("max_attempts ", partial(check_max_attempts, task.max_attempts)),
        ("timeout ", partial(check_timeout, task.timeout)),
        ("", partial(check_backoff, task.backoff)),
        ("", partial(dumps, task.metadata)),
        ("", partial(check_limited, task, others)),
    ):
        try:
            check()
        except (NotStorable, TypeError, ValueError) as error:
            raise InvalidTask(f"{task.name}: {name}{str(error).removesuffix('.')}.") from None
