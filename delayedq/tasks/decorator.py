"""The `@task` decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_PRIORITY, DEFAULT_TASK_QUEUE_NAME
from delayedq.tasks.options import check_naming
from delayedq.tasks.verbs import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import timedelta

    from delayedq.core.backoff import Backoff
    from delayedq.core.error_choice import ErrorChoice
    from delayedq.core.limiting import Limit
    from delayedq.tasks.channels import ChannelOption


@overload
def task[**P, R](function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task[**P, R](
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: bool = ...,
    max_attempts: int = ...,
    backoff: Backoff | timedelta | Sequence[timedelta] = ...,
    retry_on: ErrorChoice | None = ...,
    give_up_on: ErrorChoice | None = ...,
    timeout: timedelta | None = ...,
    deadline: timedelta | None = ...,
    expires: timedelta | None = ...,
    result_retention: timedelta | None = ...,
    on_success: Task[..., Any] | None = ...,
    on_failure: Task[..., Any] | None = ...,
    on_retry: Task[..., Any] | None = ...,
    metadata: Mapping[str, Any] | None = ...,
    exactly_once: bool = ...,
    interruptible: bool = ...,
    sensitive: bool | Collection[str] = ...,
    steps: Collection[str] | None = ...,
    channel: ChannelOption = ...,
    limit: Limit | Sequence[Limit] | None = ...,
    aliases: Collection[str] = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Decorator that makes a `Task` of a module-level function, sync or async. See `BaseTask` for the options.

    `takes_context`: the first argument of the function is a `django.tasks.TaskContext`, which callers do not pass.
    `django.tasks.task` returns the same object if its backend is `delayedq.backend.DelayedQBackend`.

        @task(queue_name="mail", priority=10)
        async def greet(name: str) -> str: ...
    """
    check_naming(options)

    def make(func: Callable[..., Any]) -> Task[..., Any]:
        return Task(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            **options,
        )

    return make if function is None else make(function)
