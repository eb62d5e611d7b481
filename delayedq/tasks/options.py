"""Check the options of a task."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.db import connections
from django.views.decorators.debug import coroutine_functions_to_sensitive_variables, sensitive_variables

from delayedq.compat import InvalidTask, InvalidTaskBackend
from delayedq.core.backoff import Exponential, as_backoff
from delayedq.core.errors import check_error_choice
from delayedq.core.metadata import PREFIX
from delayedq.core.other_names import CALLS, OPTIONS, hint
from delayedq.core.serialization import dumps
from delayedq.core.signatures import check_fit, parameter_names, takes_any_name
from delayedq.exceptions import NotStorable
from delayedq.limits.declared import check_limited
from delayedq.steps.rules import check_name
from delayedq.store.protocol import BARE
from delayedq.tasks.base import BaseTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delayedq.core.backoff import Backoff
    from delayedq.core.errors import ErrorChoice
    from delayedq.tasks.verbs import Task

# The OPTIONS of a backend: its database, and what its tasks have where they do not say.


#: Attempts are counted in a smallint column.
MOST_ATTEMPTS = 32_000


def check_max_attempts(value: object) -> None:
    """Raises ValueError."""
    if type(value) is not int or not 1 <= value <= MOST_ATTEMPTS:
        raise ValueError(f"must be a number from 1 to {MOST_ATTEMPTS:,}, not {value!r}")


def check_timeout(value: object) -> None:
    """Raises ValueError."""
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta()):
        raise ValueError(f"must be a timedelta over zero, not {value!r}")


def check_backoff(value: object) -> None:
    """Raises ValueError or TypeError."""
    as_backoff(value)


def check_database(value: object) -> None:
    """Raises ValueError."""
    if value is not None and value not in list(connections):
        raise ValueError(f"must be a key of DATABASES ({', '.join(connections)}), not {value!r}")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The keys of `TASKS[alias]["OPTIONS"]`, with their defaults."""

    #: The alias of the database that has the messages; None asks the database routers.
    DATABASE: str | None = None
    #: What the tasks of this backend have that do not set it themselves.
    MAX_ATTEMPTS: int = 8
    BACKOFF: Backoff | timedelta | Sequence[timedelta] = Exponential()  # noqa: RUF009 - it is frozen
    RETRY_ON: ErrorChoice | None = None
    GIVE_UP_ON: ErrorChoice | None = None
    TIMEOUT: timedelta | None = None
    DEADLINE: timedelta | None = None
    EXPIRES: timedelta | None = None
    RESULT_RETENTION: timedelta | None = None
    #: The same for the tasks of some queues: a dict by the name of the queue.
    QUEUE_DEFAULTS: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, queue: str) -> BackendOptions:
        """Those of the tasks that are defined for this queue."""
        own = self.QUEUE_DEFAULTS.get(queue)
        return self if own is None else replace(self, **own)


_CHECKS: dict[str, Callable[[object], None]] = {
    "DATABASE": check_database,
    "MAX_ATTEMPTS": check_max_attempts,
    "BACKOFF": check_backoff,
    "RETRY_ON": check_error_choice,
    "GIVE_UP_ON": check_error_choice,
    "TIMEOUT": check_timeout,
    "DEADLINE": check_timeout,
    "EXPIRES": check_timeout,
    "RESULT_RETENTION": check_timeout,
}

#: What a queue has no defaults for.
_OF_BACKEND = {"DATABASE", "QUEUE_DEFAULTS"}

DEFAULTS = BackendOptions()


def read_queues(alias: str, given: object) -> tuple[list[str], list[str]]:
    """The QUEUES of a backend, and what is wrong with them; wrong ones leave its tasks every queue, as [] does.

    So a task can be imported, and `manage.py check` tells what is wrong.
    """
    if isinstance(given, Iterable) and not isinstance(given, str):
        given = list(given)  # they may come from a generator
        names = [name for name in given if isinstance(name, str)]
        if len(names) == len(given):
            return names, []
    cure = 'Name them as in ["default", "mail"], or allow every queue by [].'
    return [], [f"TASKS[{alias!r}]['QUEUES'] is a list of names, not {given!r}. {cure}"]


def read_options(alias: str, given: object) -> tuple[BackendOptions, list[str]]:
    """The OPTIONS of a backend, and what is wrong with them; a wrong one has its default."""
    path = f"TASKS[{alias!r}]['OPTIONS']"
    if not isinstance(given, Mapping):
        cure = 'Leave it out, or name what you set, as in {"MAX_ATTEMPTS": 3}.'
        return DEFAULTS, [f"{path} must be a dict of options, not {given!r}. {cure}"]
    known = [each.name for each in fields(BackendOptions)]
    rest = {name: value for name, value in given.items() if name != "QUEUE_DEFAULTS"}
    right, problems = _read(path, rest, known)
    queues, wrong = _read_queues(f"{path}['QUEUE_DEFAULTS']", given.get("QUEUE_DEFAULTS", {}), known)
    return BackendOptions(**right, QUEUE_DEFAULTS=queues), problems + wrong


def _read_queues(path: str, given: Any, known: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        return {}, [f"{path}: must be a dict of dicts by the names of queues, not {given!r}."]
    names = [name for name in known if name not in _OF_BACKEND]
    queues, problems = {}, []
    for queue, own in given.items():
        queues[queue], wrong = _read(f"{path}[{queue!r}]", own, names)
        problems += wrong
    return queues, problems


def _read(path: str, given: Mapping[str, Any], known: list[str]) -> tuple[dict[str, Any], list[str]]:
    right: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        if name not in known:
            problems.append(f"{path}[{name!r}] is unknown; known are {', '.join(known)}.")
            continue
        try:
            _CHECKS[name](value)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}[{name!r}]: {error}.".replace("..", "."))
        else:
            right[name] = value
    return right, problems


# Options


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


# Which arguments of a task are sensitive: those of `@task(sensitive=...)`, and of Django's `sensitive_variables`.


#: Stands for the result; no parameter can have this name.
RESULT = "return"

#: What Django writes for `@sensitive_variables()`.
ALL = "__ALL__"

#: The function that `sensitive_variables` puts around another one.
_WRAPPER = sensitive_variables("name")(lambda: None).__code__


def sensitive_names(
    func: Callable[..., Any], takes_context: bool, given: bool | Collection[str]
) -> bool | frozenset[str]:
    """The names of what is masked; True: everything; False: nothing. Raises InvalidTask for an unknown name."""
    of_django = _of_django(func)
    if given is True or of_django == ALL:
        return True
    names = frozenset(_checked(func, takes_context, given or ()))
    parameters = parameter_names(func, takes_context)
    return names | {name for name in of_django if name in parameters} or False


def _checked(func: Callable[..., Any], takes_context: bool, given: Any) -> Collection[str]:
    known = (*parameter_names(func, takes_context), RESULT)
    asked = f"{func.__module__}.{func.__qualname__}: sensitive is True, or a list of {', '.join(known)}"
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise InvalidTask(f"{asked}; not {given!r}.")
    unknown = sorted({*given} - {*known})
    if unknown and not takes_any_name(func, takes_context):
        raise InvalidTask(f"{asked}; not {', '.join(unknown)}.")
    names: Collection[str] = given
    return names


def _of_django(func: Callable[..., Any]) -> Collection[str]:
    """The names that `sensitive_variables` was given for this function; ALL if none."""
    if inspect.iscoroutinefunction(func):
        inner = inspect.unwrap(func)
        key = hash(f"{inspect.getfile(inner)}:{inner.__code__.co_firstlineno}")
        names: Collection[str] = coroutine_functions_to_sensitive_variables.get(key, ())
        return names
    wrapper = inspect.unwrap(func, stop=_is_wrapper)
    return (inspect.getclosurevars(wrapper).nonlocals["variables"] or ALL) if _is_wrapper(wrapper) else ()


def _is_wrapper(func: Any) -> bool:
    return getattr(func, "__code__", None) is _WRAPPER
