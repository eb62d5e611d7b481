"""What the options of a task may be."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings

from delayedq.compat import InvalidTask, InvalidTaskBackend
from delayedq.core.error_choice import check_error_choice
from delayedq.core.metadata import PREFIX
from delayedq.core.other_names import CALLS, OPTIONS, hint
from delayedq.core.serialization import dumps
from delayedq.core.signatures import check_fit, parameter_names, takes_any_name
from delayedq.core.steps import check_name
from delayedq.exceptions import NotStorable
from delayedq.store.protocol import BARE
from delayedq.tasks.base import BaseTask
from delayedq.tasks.channels import check_limited
from delayedq.tasks.defaults import check_backoff, check_max_attempts, check_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from delayedq.tasks.verbs import Task


_NAIVE = re.compile(r'"\$":"datetime","v":"\d{4}-\d\d-\d\dT[\d:.]+(?:\[_fold=1\])?"')


def check_naming(options: Mapping[str, Any]) -> None:
    """Raises TypeError for what is no option of `@task`, with the option that is meant where that is known."""
    if "run_after" in options:
        raise TypeError("run_after cannot be defined statically with the @task decorator. Use .using(run_after=...).")
    known = {field.name for field in fields(BaseTask)} - {"func", "run_after", "channel_name"}
    if unknown := [name for name in options if name not in known]:
        name = unknown[0]
        raise TypeError(
            f"@task has no option {name!r}.{hint(name, OPTIONS, known)} Its options are {', '.join(sorted(known))}."
        )


def check_place(func: Any) -> None:
    """Raises InvalidTask for a function that has no path under which a worker finds it."""
    if isinstance(func, BaseTask):
        raise InvalidTask(f"{func.module_path} is a task already: it needs one @task.")
    if isinstance(func, str):
        raise InvalidTask(f"@task takes options by their names, as in @task(queue_name={func!r}).")
    name = getattr(func, "__qualname__", None)
    if not inspect.isfunction(func) or not str(name).isidentifier():
        named = name or repr(func)
        raise InvalidTask(
            f"{named} can't be a task, which is a function that is defined with `def` at module level, where workers "
            "import it by its path. Move it there, and pass what it needs as arguments."
        )


def check_backend(task: Task[..., Any]) -> None:
    """What Django checks. Raises InvalidTask or InvalidTaskBackend; it tells of ours if TASKS has another backend.

    Raises ImproperlyConfigured if all apps are loaded without ours. Nothing else tells `check` and `migrate`, which
    import tasks with the URLs: checks that are registered meanwhile do not run. Before that, E006 does.
    """
    if task.run_after is not None and not isinstance(task.run_after, datetime):
        raise InvalidTask(
            f"run_after is an aware datetime, such as timezone.now() + timedelta(hours=1), not {task.run_after!r}."
        )
    try:
        BaseTask.__post_init__(task)
    except (InvalidTask, InvalidTaskBackend) as error:
        backend = None if isinstance(error, InvalidTaskBackend) else task.get_backend()
        if hasattr(backend, "defaults"):
            raise
        ours = "Tasks of delayedq need the BACKEND 'delayedq.backend.DelayedQBackend' there."
        found = _missing(task.backend) if backend is None else f"is of {type(backend).__module__}."
        raise type(error)(f"{task.name}: {error} TASKS[{task.backend!r}] {found} {ours}") from None
    if apps.ready and hasattr(type(task.get_backend()), "store"):
        from delayedq.models import installed  # noqa: F401  it raises; without apps, models can't be imported


def _missing(alias: str) -> str:
    configured = getattr(settings, "TASKS", {}).get(alias)
    return "is missing." if configured is None else "has a BACKEND that can't be imported."


def check_call(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that do not fit, with the verb that takes what is no argument."""
    try:
        check_fit(task.func, task.takes_context, args, kwargs)
    except TypeError as error:
        known = (
            kwargs if takes_any_name(task.func, task.takes_context) else parameter_names(task.func, task.takes_context)
        )
        hints = [hint(name, CALLS) for name in kwargs if name not in known]
        raise TypeError(f"{task.name}: {error}{'.' if any(hints) else ''}{''.join(hints[:1])}") from None


def warn_naive(task: Task[..., Any], payload: str) -> None:
    """A naive datetime means another moment where the worker has another time zone."""
    if '"datetime"' in payload and _NAIVE.search(payload):
        problem = f"{task.name} was given a naive datetime, which is another moment in another time zone."
        warnings.warn(f"{problem} See django.utils.timezone.make_aware().", RuntimeWarning, stacklevel=5)


def check_options(task: Task[..., Any], others: Iterable[Task[..., Any]]) -> None:
    """Raises InvalidTask for what no task can have; `others` are those that are registered."""
    if BARE in str(task.queue_name):
        raise InvalidTask(f"{task.name}: the name of a task's queue can't contain {BARE!r}: {task.queue_name!r}.")
    if task.exactly_once and inspect.iscoroutinefunction(task.func):
        raise InvalidTask(f"{task.name}: exactly_once needs a sync function, since transactions are sync.")
    for name, check in (
        ("max_attempts ", partial(check_max_attempts, task.max_attempts)),
        ("timeout ", partial(check_timeout, task.timeout)),
        ("deadline ", partial(check_timeout, task.deadline)),
        ("expires ", partial(check_timeout, task.expires)),
        ("result_retention ", partial(check_timeout, task.result_retention)),
        ("retry_on ", partial(check_error_choice, task.retry_on)),
        ("give_up_on ", partial(check_error_choice, task.give_up_on)),
        ("steps ", partial(_check_steps, task.steps)),
        ("on_success ", partial(_check_follow_up, task, task.on_success)),
        ("on_failure ", partial(_check_follow_up, task, task.on_failure)),
        ("on_retry ", partial(_check_follow_up, task, task.on_retry)),
        ("", partial(check_backoff, task.backoff)),
        ("", partial(_check_metadata, task.metadata)),
        ("aliases ", partial(_check_aliases, task.aliases)),
        ("", partial(check_limited, task, others)),
    ):
        try:
            check()
        except (NotStorable, TypeError, ValueError) as error:
            raise InvalidTask(f"{task.name}: {name}{str(error).removesuffix('.')}.") from None


def _check_aliases(aliases: Any) -> None:
    if isinstance(aliases, str) or not all(isinstance(one, str) and "." in one for one in aliases):
        raise TypeError(f'are paths that the task had before, such as ["old.tasks.name"], not {aliases!r}')


def _check_metadata(metadata: Any) -> None:
    dumps(metadata)
    if taken := [name for name in metadata or {} if str(name).startswith(PREFIX)]:
        raise ValueError(
            f"metadata can't contain {taken[0]!r}: names that begin with {PREFIX!r} are reserved for delayedq"
        )


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
