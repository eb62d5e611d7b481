"""What the options of a task may be."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from delayedq.base_task import BaseTask
from delayedq.compat import InvalidTask
from delayedq.core.error_choice import check_error_choice
from delayedq.core.metadata import PREFIX
from delayedq.core.serialization import dumps
from delayedq.core.signatures import check_fit
from delayedq.core.steps import check_name
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
        ("deadline ", partial(check_timeout, task.deadline)),
        ("expires ", partial(check_timeout, task.expires)),
        ("retry_on ", partial(check_error_choice, task.retry_on)),
        ("give_up_on ", partial(check_error_choice, task.give_up_on)),
        ("steps ", partial(_check_steps, task.steps)),
        ("on_success ", partial(_check_follow_up, task, task.on_success)),
        ("on_failure ", partial(_check_follow_up, task, task.on_failure)),
        ("on_retry ", partial(_check_follow_up, task, task.on_retry)),
        ("", partial(check_backoff, task.backoff)),
        ("", partial(_check_metadata, task.metadata)),
        ("", partial(check_limited, task, others)),
    ):
        try:
            check()
        except (NotStorable, TypeError, ValueError) as error:
            raise InvalidTask(f"{task.name}: {name}{str(error).removesuffix('.')}.") from None


def _check_metadata(metadata: Any) -> None:
    dumps(metadata)
    if taken := [name for name in metadata or {} if str(name).startswith(PREFIX)]:
        raise ValueError(f"metadata has no {taken[0]!r}: names that begin with {PREFIX!r} are those of delayedq")


def _check_steps(names: object) -> None:
    """Raises TypeError or ValueError for what are no names of steps."""
    if names is None:
        return
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"must be names of steps, not {names!r}")
    for name in names:
        check_name(name)


def _check_follow_up(task: Task[..., Any], other: object) -> None:
    """Raises TypeError or ValueError for what can't be enqueued where a message of the task ends."""
    if other is None:
        return
    if not isinstance(other, BaseTask):
        raise TypeError(f"must be a task, not {other!r}")
    try:
        check_fit(other.func, other.takes_context, ("id",), {})
    except TypeError as error:
        raise ValueError(f"must be a task that takes the id of a message; {other.name}: {error}") from None
    if database_of(other) != database_of(task):
        raise ValueError(f"must be a task of the same database: the backend of {other.name} is {other.backend!r}")


def database_of(task: BaseTask) -> Any:
    """The alias of the database of its backend; None if the routers decide, or if it has none."""
    return getattr(getattr(task.get_backend(), "defaults", None), "DATABASE", None)
