"""The names of Celery over this queue, for a project that moves task by task.

    from delayedq.contrib.celery import AsyncResult, shared_task

What has no equal raises TypeError where it is written; docs/moving.md has the table.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Never, NoReturn, cast

from delayedq import clock, tasks
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, TaskResultDoesNotExist, TaskResultStatus, task_backends
from delayedq.core.backoff import Constant, Exponential
from delayedq.core.other_names import hint, unknown_name
from delayedq.exceptions import DelayedQError, Retry
from delayedq.limits.rules import Limit, Rate
from delayedq.store.offers import check_time
from delayedq.tasks import current_attempt, current_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from delayedq.results.message import MessageResult

# What `delayedq.contrib.celery` refuses, and what does the same here; docs/moving.md has the same names in a table.


_ON_END = "on_success= and on_failure= of delayedq.task, or delayedq.chain(...)"

_CHAIN = "delayedq.chain(...) and delayedq.group(...), whose parts are task.s(...)"

_DATABASE = "nothing in its place: there is no broker, and a message is a row of the database"

_JSON = "nothing in its place: arguments are stored as JSON"

_TIMEOUT = "time_limit= of shared_task, or timeout= of delayedq.task"

#: Options of `shared_task`.
TASKS = {
    **dict.fromkeys(["acks_on_failure", "acks_on_failure_or_timeout", "acks_on_timeout"], "autoretry_for="),
    **dict.fromkeys(["after_return", "before_start"], "DELAYEDQ['AROUND_ATTEMPTS'] in the settings"),
    **dict.fromkeys(["compression", "serializer"], _JSON),
    **dict.fromkeys(["exchange", "routing_key"], "queue="),
    **dict.fromkeys(["on_failure", "on_retry", "on_success"], "delayedq.task, which has this option"),
    "base": "bind=True, on a function, and DELAYEDQ['AROUND_ATTEMPTS'] for what all tasks do",
    "pydantic": "nothing in its place: make the model of the arguments in the function",
    "retry_kwargs": "max_retries= and default_retry_delay=",
    "retry_on_worker_lost": "nothing in its place: a message whose worker was killed runs again",
    "throws": "nothing in its place: each error is logged, whatever its class",
}

#: Arguments of `apply_async`.
CALLS = {
    **dict.fromkeys(["link", "link_error"], _ON_END),
    **dict.fromkeys(["chain", "chord", "group_id", "group_index", "parent_id", "root_id", "add_to_parent"], _CHAIN),
    **dict.fromkeys(["connection", "producer", "publisher", "router", "reply_to", "retry", "retry_policy"], _DATABASE),
    **dict.fromkeys(["exchange", "route_name", "routing_key"], "queue="),
    **dict.fromkeys(["compression", "serializer"], _JSON),
    **dict.fromkeys(["soft_time_limit", "time_limit"], _TIMEOUT),
    "headers": "task.using(metadata={...}), which current_message().metadata returns",
    "retries": "max_retries= of shared_task",
    "shadow": "task.using(metadata={...})",
    "task_id": "task.schedule_at(when, ..., key=...); the id is that of the result",
}

#: Arguments of `self.retry`.
RETRIES = {
    "args": "the arguments of the message, which it keeps; or enqueue another one and return",
    "kwargs": "the arguments of the message, which it keeps; or enqueue another one and return",
    "max_retries": "max_retries= of shared_task",
    "throw": "self.retry() without it, which always raises",
    "queue": "the queue of the message, which it keeps; or enqueue another one and return",
    "priority": "the priority of the message, which it keeps; or enqueue another one and return",
    "expires": "expires= of shared_task",
}

#: Attributes of results, and arguments of their methods.
RESULTS = {
    "app": "nothing in its place: manage.py knows the project",
    "args": "delayedq.models.Message and FinishedMessage, whose rows have args",
    "children": "delayedq.get_flow(id).steps()",
    "collect": "delayedq.as_completed(...)",
    "date_done": "task.get_result(id).finished_at",
    "info": "result.result",
    "interval": "get(timeout), which knows how often to ask",
    "iterdeps": "delayedq.get_flow(id).steps()",
    "kwargs": "delayedq.models.Message and FinishedMessage, whose rows have kwargs",
    "name": "task.get_result(id).task.name",
    "on_message": "delayedq.signals",
    "parent": "delayedq.get_flow(id).steps()",
    "queue": "task.get_result(id).task.queue_name",
    "retries": "task.get_result(id).attempts - 1",
    "signal": "result.revoke() without it: a task that runs is told, and its process is not killed",
    "terminate": "result.revoke() without it: a task that runs is told, and its process is not killed",
    "then": _ON_END,
    "throw": "result.get()",
    "traceback": "task.get_result(id).errors",
    "wait": "result.get()",
    "worker": "task.get_result(id).worker_ids",
}

#: What is imported from Celery under these names.
NAMES = {
    "Celery": "nothing in its place: manage.py knows the project",
    "GroupResult": "delayedq.group(...).enqueue(), whose result has wait() and result()",
    "Task": "shared_task(bind=True), on a function",
    "chain": "delayedq.chain(first.s(...), second.s())",
    "chord": "delayedq.chain(delayedq.group(...), callback.s())",
    "chunks": "delayedq.map_(task, rows, chunk=500)",
    "crontab": "DELAYEDQ['CRON'] in the settings, or delayedq.schedules.create(...)",
    "current_task": "delayedq.current_message()",
    "group": "delayedq.group(task.s(...), ...)",
    "signature": "task.s(...)",
    "task": "shared_task",
}


def refused(of: str, names: Iterable[str], cures: dict[str, str]) -> str:
    """The sentence about names that `of` does not have here, with what to use for the first one that has an equal."""
    known = sorted(names)
    cure = next((f" Use {cures[name]}." for name in known if name in cures), "")
    return f"{of} knows no {', '.join(known)}; see docs/moving.md.{cure}"


# Celery


#: Attempts where Celery retries for ever.
FOR_EVER = 32_000

DEFAULT_RETRIES, DEFAULT_RETRY_DELAY, BACKOFF_MAX = 3, 180, 600

#: Options that say what always is so here.
NO_EFFECT = {
    *("name", "acks_late", "ignore_result", "reject_on_worker_lost", "send_events", "store_errors_even_if_ignored"),
    *("track_started", "trail"),
}

_PERIODS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}


def __getattr__(name: str) -> Any:
    """Refuses what is imported from Celery and has another place here."""
    if name in NAMES:
        raise unknown_name(refused("delayedq.contrib.celery", [name], NAMES))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TaskFailed(DelayedQError):  # noqa: N818
    """`AsyncResult.get` raises it for a task that failed, with the class and the text of its last error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTask(tasks.Task[..., Any]):
    """A Task that has the methods of one of Celery, too."""

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Store a message that is due now, in the caller's transaction."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        **others: Any,
    ) -> AsyncResult:
        """Store a message. countdown, expires: seconds; eta: an aware datetime; others: refused with a TypeError.

        Raises what `Task.enqueue` raises.
        """
        if unknown := others.keys() - NO_EFFECT:
            raise TypeError(refused(f"apply_async() of {self.name}", unknown, CALLS))
        for moment in (eta, expires):
            if isinstance(moment, datetime):
                check_time(moment)
        now = clock.now()
        when = eta if countdown is None else now + timedelta(seconds=countdown)
        task = self.using(
            run_after=when, queue_name=queue, priority=priority, expires=_worth(expires, now, max(now, when or now))
        )
        result = task.enqueue(*(args or ()), **(kwargs or {}))
        return AsyncResult(result.id, backend=self.backend)

    #: The row of a message commits with the transaction that stores it: there is nothing to wait for.
    delay_on_commit = delay
    apply_async_on_commit = apply_async


def _worth(expires: float | datetime | None, now: datetime, due: datetime) -> timedelta | None:
    """How long after it is due a message may still start; Celery counts from the call."""
    if expires is None:
        return None
    until = expires if isinstance(expires, datetime) else now + timedelta(seconds=expires)
    return max(until - due, timedelta(microseconds=1))


def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator that makes a SharedTask, with or without options of Celery. Raises TypeError for one without equal.

    @shared_task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=5)
    def fetch(self, url): ...
    """

    def make(func: Callable[..., Any]) -> SharedTask:
        given = {name: value for name, value in options.items() if name not in NO_EFFECT}
        pause = _seconds(given.get("default_retry_delay", DEFAULT_RETRY_DELAY))
        is_bound, ours = given.pop("bind", False), _options(given)
        return SharedTask(func=_bound(func, ours["max_attempts"] - 1, pause) if is_bound else func, **ours)

    return make if function is None else make(function)


def _bound(function: Callable[..., Any], retries: int, pause: timedelta | None) -> Callable[..., Any]:
    """The function with its first argument given: to others it has not got it."""

    @wraps(function)
    def bound(*args: Any, **kwargs: Any) -> Any:
        return function(Self(retries, pause), *args, **kwargs)

    given = inspect.signature(function)
    bound.__signature__ = given.replace(parameters=[*given.parameters.values()][1:])  # type: ignore[attr-defined]
    return bound


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a task here. Raises TypeError for those that are left over."""
    retries = given.pop("max_retries", DEFAULT_RETRIES)
    ours = {
        "backend": DEFAULT_TASK_BACKEND_ALIAS,
        "priority": given.pop("priority", None) or 0,
        "queue_name": given.pop("queue", None) or "default",
        "max_attempts": FOR_EVER if retries is None else retries + 1,
        "retry_on": tuple(given.pop("autoretry_for", ())) or _never,
        "give_up_on": tuple(given.pop("dont_autoretry_for", ())) or None,
        "backoff": _backoff(given),
        "timeout": _shortest(given.pop("soft_time_limit", None), given.pop("time_limit", None)),
        "expires": _seconds(given.pop("expires", None)),
    }
    if rate := given.pop("rate_limit", None):
        ours["limit"] = Limit(rate=_rate(rate))
    if given:
        raise TypeError(refused("shared_task()", given, TASKS))
    return ours


def _never(error: BaseException) -> bool:  # noqa: ARG001
    """A task without autoretry_for is retried only if it asks for it."""
    return False


def _backoff(given: dict[str, Any]) -> Constant | Exponential:
    delay = timedelta(seconds=given.pop("default_retry_delay", DEFAULT_RETRY_DELAY))
    initial = given.pop("retry_backoff", False)
    most, jitter = given.pop("retry_backoff_max", BACKOFF_MAX), given.pop("retry_jitter", True)
    if not initial:
        return Constant(delay)
    first = timedelta(seconds=int(initial))
    return Exponential(first, 2, max(first, timedelta(seconds=most)), 1.0 if jitter else 0.0)


def _rate(text: str) -> Rate:
    """A rate as Celery writes it: "10/m". Raises TypeError."""
    match = re.fullmatch(r"(\d+)(?:/([smh]))?", str(text))
    if match is None:
        raise TypeError(f"rate_limit is written as '10/s', '10/m' or '10/h', not {text!r}.")
    return Rate(int(match[1]), per=_PERIODS[match[2] or "s"], burst=1)


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


def _shortest(*limits: float | None) -> timedelta | None:
    return _seconds(min((limit for limit in limits if limit is not None), default=None))


class Named:
    """Says of a name of Celery that is missing here where its equal is written down."""

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} here; see docs/moving.md.{hint(name, RESULTS)}"
            )


class Request(Named):
    """`self.request`: of the message that runs; without one, where a task is called as a function, as there."""

    @property
    def id(self) -> str | None:
        return str(running.id) if (running := current_attempt.get()) else None

    @property
    def retries(self) -> int:
        """How often it was tried before."""
        return running.attempt - 1 if (running := current_attempt.get()) else 0

    @property
    def delivery_info(self) -> dict[str, Any]:
        """The queue, as its routing key."""
        return {"routing_key": current_message().queue}


class Self(Named):
    """The `self` of a bound task. `pause`: that before a retry without a time."""

    request = Request()
    #: As a function catches it.
    Retry = Retry

    def __init__(self, retries: int = DEFAULT_RETRIES, pause: timedelta | None = None) -> None:
        self._retries, self._pause = retries, pause

    @property
    def name(self) -> str:
        return str(current_message().kind)

    @property
    def max_retries(self) -> int:
        return running.max_attempts - 1 if (running := current_attempt.get()) else self._retries

    def retry(
        self,
        *args: Never,
        exc: BaseException | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        throw: bool = True,
        **others: Never,
    ) -> NoReturn:
        """Raise Retry; after the last attempt, or without one, the error itself. No time: default_retry_delay.

        exc: the error; None: the one that is being handled, if there is one.

        Raises TypeError for another argument, and for throw=False.
        """
        unknown = [*others, *(["args"] if args else []), *([] if throw else ["throw"])]
        if unknown:
            raise TypeError(refused("self.retry()", unknown, RETRIES))
        delay = self._pause if countdown is None else _seconds(countdown)
        if eta is not None:
            check_time(eta)
            delay = max(eta - clock.now(), timedelta())
        exc = sys.exception() if exc is None else exc
        if exc is not None and (self.request.id is None or self.request.retries >= self.max_retries):
            raise exc
        raise Retry("" if exc is None else str(exc), delay=delay) from exc


class AsyncResult(Named):
    """What became of a message, by its id, read anew each time. An id that nobody knows is PENDING, as there."""

    def __init__(self, id: str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS, **others: Never) -> None:  # noqa: A002
        if others:
            raise TypeError(refused("AsyncResult()", others, RESULTS))
        self.id = self.task_id = id
        self.backend = backend

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __str__(self) -> str:
        return self.id  # as there: projects store it, and send it to browsers

    def __eq__(self, other: object) -> bool:
        ours = isinstance(other, AsyncResult) and (self.id, self.backend) == (other.id, other.backend)
        return ours or other == self.id  # equal to its id, as there

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED."""
        try:
            return _state(self._read())
        except TaskResultDoesNotExist:
            return "PENDING"

    status = state

    @property
    def result(self) -> Any:
        """What the task returned; TaskFailed, not raised, if it failed; else None."""
        state = self.state
        if state == "SUCCESS":
            return self._read().return_value
        return _failure(self._read()) if state == "FAILURE" else None

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in {"SUCCESS", "FAILURE", "REVOKED"}

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def get(self, timeout: float | None = None, *, propagate: bool = True, **others: Never) -> Any:
        """Wait for its end, at most `timeout` seconds, and return what the task returned.

        Raises TimeoutError, TaskResultDoesNotExist for an unknown id, and with `propagate` TaskFailed.
        """
        if others:
            raise TypeError(refused("AsyncResult.get()", others, RESULTS))
        ended = self._read().wait(_seconds(timeout))
        if propagate and not ended.status == TaskResultStatus.SUCCESSFUL:
            raise _failure(ended)
        return self.result

    def revoke(self, **others: Never) -> None:
        """Cancel the message; a task that runs is told: see `current_message().cancelled`."""
        if others:
            raise TypeError(refused("AsyncResult.revoke()", others, RESULTS))
        self._read().cancel()

    def forget(self) -> None:
        """Do nothing: results are in the history, which is pruned by its age."""

    def _read(self) -> MessageResult:
        return cast("MessageResult", task_backends[self.backend].get_result(self.id))


def _state(result: MessageResult) -> str:
    if result.status == TaskResultStatus.READY:
        return "RETRY" if result.errors else "PENDING"
    if result.status == TaskResultStatus.FAILED and result.outcome in {"cancelled", "expired"}:
        return "REVOKED"
    return {
        TaskResultStatus.RUNNING: "STARTED",
        TaskResultStatus.SUCCESSFUL: "SUCCESS",
        TaskResultStatus.FAILED: "FAILURE",
    }[result.status]


def _failure(result: MessageResult) -> TaskFailed:
    last: Sequence[Any] = result.errors[-1:]
    said = [f"{one.exception_class_path}: {one.message}" for one in last]
    return TaskFailed(said[0] if said else f"The message {result.id} ended as {result.outcome}.")
