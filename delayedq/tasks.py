"""Tasks: what `@task` makes of a function, and the ways to put a message for it into the queue.

A `Task` is a `django.tasks.Task` with retries, a timeout and scheduling by key. Everything that enqueues takes part in
the caller's transaction: the message appears when it commits and never existed if it rolls back.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import batched
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from asgiref.sync import sync_to_async
from django.db import transaction
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME
from django.tasks import Task as DjangoTask
from django.tasks.base import DEFAULT_TASK_PRIORITY
from django.tasks.exceptions import InvalidTask
from django.utils import timezone

from delayedq.core.backoff import Exponential, as_backoff
from delayedq.core.serialization import dump_call, dumps
from delayedq.exceptions import NotStorable, UnknownTask
from delayedq.store import default_store
from delayedq.store.offers import check_time
from delayedq.store.protocol import BARE, Offer, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime, timedelta

    from django.tasks import TaskResult

    from delayedq.core.backoff import Backoff
    from delayedq.store.protocol import Offered
    from delayedq.worker.attempt import Attempt

    AnyTask = DjangoTask[..., Any]
    Call = tuple[Iterable[Any], Mapping[str, Any]]
else:
    AnyTask = DjangoTask

MAX_ATTEMPTS = 8
#: They are counted in a smallint.
MOST_ATTEMPTS = 32_000

#: How many messages `enqueue_bulk` holds at once.
CHUNK = 10_000

registered: dict[str, Task[..., Any]] = {}

current_attempt: ContextVar[Attempt | None] = ContextVar("delayedq_current_message", default=None)


class Scheduled(NamedTuple):
    """What became of an offer: its outcome, and the id under which `get_result` finds the message.

    `id` is None only if the message that made the offer IGNORED ended in the same instant.
    """

    outcome: OfferOutcome
    id: str | None

    @classmethod
    def of(cls, offered: Offered) -> Scheduled:
        return cls(offered.outcome, None if offered.id is None else str(offered.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task[**P, R](AnyTask):
    """A function that workers run. Made by `@task`; changed for one call by `using()`.

    max_attempts: how often it is started before the message is set aside as failed (1 to 32,000).
    backoff: the delay before the next attempt: a timedelta, or a callable from the number of the failed attempt.
    timeout: how long one attempt may take (a timedelta); then it fails with TaskTimeout.
    metadata: JSON that travels with the message; `current_message().metadata` has it.
    exactly_once: run the task in a transaction on the queue's database that also ends its message: what the task writes
        there and the end commit together, or neither does. A task that raises, or lost its lease, has written nothing.
        Other databases, threads and services take no part, but `transaction.on_commit` callbacks run as ever. Only
        for sync functions, and best for short ones: what they lock stays locked, which on SQLite is the whole file.

    Raises InvalidTask for a wrong option, and for a function that is not defined at module level.
    """

    max_attempts: int = MAX_ATTEMPTS
    backoff: Backoff | timedelta = field(default_factory=Exponential)
    timeout: timedelta | None = None
    metadata: Mapping[str, Any] | None = None
    exactly_once: bool = False

    def __post_init__(self) -> None:
        DjangoTask.__post_init__(self)
        _check_options(self)
        known = registered.get(self.module_path)
        if known is None or known.func is not self.func:
            registered[self.module_path] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, without the queue."""
        result: R = self.func(*args, **kwargs)
        return result

    def using(self, **changes: Any) -> Task[P, R]:
        """The same task with other options for its messages: priority, queue_name, run_after, backend, max_attempts
        or metadata. (The backoff, the timeout and exactly_once are not stored in messages: they are always those of the
        task.)

        Options that are None stay as they are. Raises TypeError for an unknown option.
        """
        if unknown := changes.keys() - _CHANGEABLE:
            raise TypeError(f"using() takes {', '.join(sorted(_CHANGEABLE))}, not {', '.join(sorted(unknown))}.")
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """Put a message into the queue, due now (or at `run_after`). Raises InvalidMessage for what can't be stored."""
        return self.get_backend().enqueue(self, list(args), dict(kwargs))  # type: ignore[arg-type]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        return await self.get_backend().aenqueue(self, list(args), dict(kwargs))  # type: ignore[arg-type]

    def enqueue_many(self, calls: Iterable[Call]) -> list[Scheduled]:
        """Put one message per (args, kwargs) into the queue: all or none. See `enqueue_bulk` for a million of them."""
        return [Scheduled.of(offered) for offered in default_store().offer_many(self._offers(calls, self.run_after))]

    def enqueue_bulk(self, calls: Iterable[Call], *, chunk_size: int = CHUNK) -> int:
        """`enqueue_many` without results, for any number of calls: memory stays flat. Returns how many there were.

        `calls` is read once, `chunk_size` (at least 1) at a time; all or none are put into the queue.
        """
        offers = self._offers(calls, self.run_after)
        store = default_store()
        with transaction.atomic(using=store.alias):
            return sum(len(store.offer_many(chunk)) for chunk in batched(offers, chunk_size))

    def schedule_at(
        self,
        when: datetime,
        /,
        *args: Any,
        key: str | None = None,
        on_conflict: OnConflict | str = OnConflict.REPLACE,
        **kwargs: Any,
    ) -> Scheduled:
        """Run at `when` (aware; a past time is due now and keeps its place in the order).

        With a key (1 to 200 characters, unique per task) this is an upsert of the live message that has it;
        `on_conflict` says what becomes of that one: "replace" (payload and time), "keep" (do nothing), "preserve_time"
        (payload only), "earliest" or "latest" (payload, and the earlier or later of both times). Replacing a message
        that runs right now makes it run once more afterwards.

        Raises InvalidMessage, and stores nothing, for a naive time, a bad key or arguments that can't be stored.
        """
        check_time(when)
        offer = self.offer(args, kwargs, when=when, key=key)
        return Scheduled.of(default_store().offer(offer, OnConflict(on_conflict)))

    def schedule_in(self, delay: timedelta, /, *args: Any, **options: Any) -> Scheduled:
        """`schedule_at` a timedelta from now."""
        return self.schedule_at(timezone.now() + delay, *args, **options)

    async def aschedule_at(self, when: datetime, /, *args: Any, **options: Any) -> Scheduled:
        return await sync_to_async(self.schedule_at)(when, *args, **options)

    async def aschedule_in(self, delay: timedelta, /, *args: Any, **options: Any) -> Scheduled:
        return await sync_to_async(self.schedule_in)(delay, *args, **options)

    def unschedule(self, *, key: str) -> bool:
        """End the live message of this key as cancelled; False if there is none.

        An attempt that runs right now is not stopped, but told so by `current_message().lease_lost`.
        """
        return default_store().unschedule(self.module_path, key)

    async def aunschedule(self, *, key: str) -> bool:
        return await sync_to_async(self.unschedule)(key=key)

    def offer(
        self, args: Iterable[Any], kwargs: Mapping[str, Any], *, when: datetime | None, key: str | None = None
    ) -> Offer:
        """The message that a call would store.

        Raises TypeError if the arguments do not fit the function, InvalidMessage if they can't be stored.
        """
        (offer,) = self._offers([(args, kwargs)], when, key)
        return offer

    def _offers(self, calls: Iterable[Call], when: datetime | None, key: str | None = None) -> Iterator[Offer]:
        if self.func.__module__ == "__main__":
            raise InvalidTask(f"{self.name} is defined in __main__, where no worker finds it; move it to a module.")
        queue, kind, priority, max_attempts = self.queue_name, self.module_path, self.priority, self.max_attempts
        metadata = None if self.metadata is None else dumps(self.metadata)
        for given, kwargs in calls:
            args = tuple(given)
            payload = dump_call(args, kwargs, _bind(self, args, kwargs))
            yield Offer(queue, kind, payload, key, when, priority, max_attempts, metadata)


_CHANGEABLE = {"priority", "queue_name", "run_after", "backend", "max_attempts", "metadata"}


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
    backoff: Backoff | timedelta = ...,
    timeout: timedelta | None = ...,
    metadata: Mapping[str, Any] | None = ...,
    exactly_once: bool = ...,
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
    """Make a task of a module-level function, sync or async. See `Task` for the options.

    `django.tasks.task` gives the same object when its backend is `delayedq.backend.DelayedQBackend`.
    """

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


def task_at(path: str) -> Task[..., Any]:
    """The registered task of this path. A path is never imported: a row in the database can't name other code.

    Raises UnknownTask.
    """
    try:
        return registered[path]
    except KeyError:
        raise UnknownTask(
            f"No task is registered as {path!r}. Tasks are found in the tasks.py of each installed app; "
            "import other modules that define tasks in AppConfig.ready()."
        ) from None


def current_message() -> Attempt:
    """The message that the calling task was started for. Raises LookupError outside of a task."""
    attempt = current_attempt.get()
    if attempt is None:
        raise LookupError("There is no current message: this code was not started by a worker.")
    return attempt


def parameters_of(task: Task[..., Any]) -> inspect.Signature:
    """What a caller passes: the signature of the function without the context."""
    return _parameters(task.func, task.takes_context)


@cache
def _parameters(func: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:] if takes_context else parameters)


@cache
def _names(func: Callable[..., Any], takes_context: bool) -> tuple[str, ...]:
    return tuple(_parameters(func, takes_context).parameters)


@cache
def _arity(func: Callable[..., Any], takes_context: bool) -> tuple[int, float]:
    """With how many positional arguments alone it can be called for sure: at least and at most."""
    parameters = _parameters(func, takes_context).parameters.values()
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return 0, -1
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    fewest = sum(p.default is p.empty for p in positional)
    return fewest, inf if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)


def _bind(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    fewest, most = _arity(task.func, task.takes_context)
    if kwargs or not fewest <= len(args) <= most:
        try:
            parameters_of(task).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{task.name}: {error}") from None
    return _names(task.func, task.takes_context)


def _check_options(task: Task[..., Any]) -> None:
    if not task.func.__qualname__.isidentifier():
        raise InvalidTask(f"{task.func.__qualname__} must be defined at module level.")
    if BARE in str(task.queue_name):
        raise InvalidTask(f"{task.name}: a task's queue has no {BARE!r} in its name: {task.queue_name!r}.")
    if type(task.max_attempts) is not int or not 1 <= task.max_attempts <= MOST_ATTEMPTS:
        raise InvalidTask(
            f"{task.name}: max_attempts must be a number from 1 to {MOST_ATTEMPTS:,}, not {task.max_attempts!r}."
        )
    if task.timeout is not None and not _positive(task.timeout):
        raise InvalidTask(f"{task.name}: timeout must be a timedelta over zero, not {task.timeout!r}.")
    if task.exactly_once and inspect.iscoroutinefunction(task.func):
        raise InvalidTask(f"{task.name}: exactly_once needs a sync function, since transactions are sync.")
    try:
        as_backoff(task.backoff)
        dumps(task.metadata)
    except (NotStorable, TypeError, ValueError) as error:
        raise InvalidTask(f"{task.name}: {error}") from None


def _positive(duration: object) -> bool:
    return hasattr(duration, "total_seconds") and duration.total_seconds() > 0
