"""The class `Task`, and its verbs that put messages into the queue.

A `Task` is a `django.tasks.Task` with retries, a timeout and scheduling by key. Everything that enqueues takes part in
the caller's transaction: the message becomes visible when that commits and is gone if it rolls back.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Never, Unpack, cast, overload

from delayedq import clock
from delayedq.async_versions import async_version
from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_PRIORITY, DEFAULT_TASK_QUEUE_NAME, InvalidTask
from delayedq.core.metadata import (
    DEADLINE,
    EXPIRES,
    PARENT,
    ROOT,
    as_given,
    shortest_deadline,
    stored_duration,
    with_own,
)
from delayedq.core.other_names import CALLS, OPTIONS, hint
from delayedq.core.serialization import dump_call, dumps, loads
from delayedq.core.signatures import parameter_names, signature_of
from delayedq.flows.step_results import dump_step
from delayedq.hooks import enqueue_hooks, with_added
from delayedq.limits.declared import channel_for, lines_up, rules_of, sizes_of
from delayedq.limits.rules import channel_of
from delayedq.sql.priority import shown_priority
from delayedq.store.base import CHUNK
from delayedq.store.offers import check_time, time_in
from delayedq.store.protocol import Offer
from delayedq.tasks.base import DEFAULTED, BaseTask, WrittenCall
from delayedq.tasks.current import current_attempt
from delayedq.tasks.options import (
    DEFAULTS,
    check_backend,
    check_call,
    check_naming,
    check_options,
    check_place,
    database_of,
    sensitive_names,
    warn_naive,
)
from delayedq.tasks.registry import register, registered
from delayedq.tasks.scheduling import NO_KEY, Changes, as_call, enqueuing_backend, first, key_alone, keyed

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from delayedq.compat import TaskResult
    from delayedq.core.backoff import Backoff
    from delayedq.core.errors import ErrorChoice
    from delayedq.limits.declared import ChannelOption
    from delayedq.limits.rules import Limit
    from delayedq.store.protocol import Conflict
    from delayedq.tasks.scheduling import AnyCall, Scheduled, Scheduler, StoredOptions
    from delayedq.worker.attempt import Attempt

# What the messages of a task say of it and of who makes them: their part of the metadata, and what is read back.


def own_metadata(task: Task[..., Any], known: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """How it differs from the task that workers know, and which attempt makes the message."""
    lineage = _lineage(task, attempt)
    if task is known:
        return lineage
    durations = ((EXPIRES, task.expires, known.expires), (DEADLINE, task.deadline, known.deadline))
    return lineage | {name: own.total_seconds() for name, own, theirs in durations if own is not None and own != theirs}


def stored_options(task: Task[..., Any], row: StoredOptions) -> dict[str, Any]:
    """The options of the task that a message (a row, or what was claimed) has."""
    moved = row.scheduled_at_initially != row.created_at
    return {
        "queue_name": row.queue,
        "priority": shown_priority(row.priority),
        "max_attempts": row.max_attempts,
        "metadata": None if (metadata := as_given(row.metadata)) is None else loads(metadata),
        "deadline": shortest_deadline(row.metadata, task.deadline),
        "expires": stored_duration(row.metadata, EXPIRES, task.expires),
        "channel_name": channel_of(row.metadata),
        "run_after": row.scheduled_at_initially if moved else None,
    }


def _lineage(task: Task[..., Any], attempt: Attempt | None) -> dict[str, Any]:
    """The parent is one of the same database, or none."""
    if attempt is None or (task.backend != attempt.task.backend and database_of(task) != database_of(attempt.task)):
        return {}
    return {PARENT: attempt.id, ROOT: attempt.root_id}


# Verbs


@dataclass(frozen=True, slots=True, kw_only=True)
class Task[**P, R](BaseTask):
    """A function that workers run. `@task` makes it; `using()` changes options for one call. See `BaseTask` for them.

        @task(queue_name="mail", max_attempts=3, timeout=timedelta(minutes=2))
        def remind(flight_id: int) -> None: ...

    Raises InvalidTask for a wrong option, and for a function that is not defined at module level.
    """

    def __post_init__(self) -> None:
        check_place(self.func)
        check_backend(self)
        object.__setattr__(self, "sensitive", sensitive_names(self.func, self.takes_context, self.sensitive))
        defaults = getattr(self.get_backend(), "defaults", DEFAULTS).of(self.queue_name)
        for name in DEFAULTED:
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(defaults, name.upper()))
        check_options(self, registered.values())
        register(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, in this process and without the queue; returns what it returns."""
        result: R = self.func(*args, **kwargs)
        return result

    def using(self, **changes: Unpack[Changes]) -> Task[P, R]:
        """Return a copy of the task with other options for its messages: priority, queue_name, run_after, backend,
        max_attempts, deadline, expires, metadata or channel (the channel itself). None keeps the value. Other options
        are not stored. Raises TypeError for an unknown option, InvalidTask for a wrong value.

            remind.using(priority=10, run_after=tomorrow).enqueue(7)
        """
        known = Changes.__annotations__
        if unknown := changes.keys() - known.keys():
            cures = "".join(hint(name, CALLS | OPTIONS, known) for name in sorted(unknown)[:1])
            raise TypeError(f"using() takes {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}.{cures}")
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        if "channel" in given:
            given["channel_name"] = given.pop("channel")
        return replace(self, **given)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """Store a message that is due now (or at `run_after`), and return its result, a `django.tasks` TaskResult.

        Raises TypeError if the arguments do not fit the function, InvalidMessage if they can't be stored. If a limit
        of the task has reached its size, nothing is stored: the result is FAILED with the error QueueFull, and its id
        is ""; with on_full="raise", QueueFull is raised.

            result = remind.enqueue(7)
            result.refresh()
            result.status
        """
        return enqueuing_backend(self).enqueue(self, list(args), dict(kwargs))  # type: ignore[no-any-return]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """The async version of `enqueue`."""
        return await enqueuing_backend(self).aenqueue(self, list(args), dict(kwargs))  # type: ignore[no-any-return]

    def enqueue_many(self, calls: Iterable[AnyCall]) -> list[Scheduled]:
        """Store one message per pair of (args, kwargs), all or none, and return their outcomes in the same order.

        A `delayedq.Call` also has a time (`at`) and a `key` of its own; a live message with that key is replaced.
        Raises what `enqueue` and `schedule_at` raise. For more calls than fit into memory use `enqueue_bulk`.

            remind.enqueue_many([((7,), {}), Call((8,), at=departure, key="UA1545")])
        """
        return self._scheduler().enqueue_many(self, calls)

    def enqueue_bulk(self, calls: Iterable[AnyCall], *, chunk_size: int = CHUNK) -> int:
        """Like `enqueue_many`, for any number of calls in constant memory. Returns how many messages were stored.

        `calls` is read once, in chunks of `chunk_size` (at least 1); all chunks are stored in one transaction.
        Give calls with keys sorted by key, as `sorted` does: only those of a chunk are sorted here. Two transactions
        with the same keys may deadlock: then one raises OperationalError and stores nothing; it is not tried again.
        """
        return self._scheduler().enqueue_bulk(self, calls, chunk_size)

    # A type checker knows the arguments of the function where no option stands among them.
    @overload
    def schedule_at(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> Scheduled: ...
    @overload
    def schedule_at(
        self, when: datetime, /, *args: Any, key: str | None, on_conflict: Conflict = ..., **kwargs: Any
    ) -> Scheduled: ...
    def schedule_at(  # type: ignore[misc]  # the function may have an argument `key`, which is then the message's
        self,
        when: Any = None,
        /,
        *args: Any,
        key: str | None = NO_KEY,
        on_conflict: Conflict = "replace",
        **kwargs: Any,
    ) -> Scheduled:
        """Store a message that is due at `when`, an aware datetime. A past time is due now, and keeps its order.

        With a key (str of 1 to 200 characters, unique per task) this is an upsert of the live message with that key.
        `on_conflict` names what is replaced: "replace" (payload and time; debounce), "keep" (nothing), "preserve_time"
        (payload only; throttle), "earliest" or "latest" (payload, and the earlier or later of the two times). A message
        that is replaced while it runs will run once more afterwards.

        Raises InvalidMessage, and stores nothing, for a naive time, a bad key or arguments that can't be stored;
        TypeError if the arguments do not fit the function; ValueError for an unknown `on_conflict`, or without a key.

            remind.schedule_at(departure - timedelta(hours=2), 7, key="UA1545/2013-01-01")
        """
        check_time(first("schedule_at", when, kwargs))
        return self._scheduler().schedule(self, args, kwargs, when, *keyed(key, on_conflict))

    @overload
    def schedule_in(self, delay: timedelta, /, *args: P.args, **kwargs: P.kwargs) -> Scheduled: ...
    @overload
    def schedule_in(
        self, delay: timedelta, /, *args: Any, key: str | None, on_conflict: Conflict = ..., **kwargs: Any
    ) -> Scheduled: ...
    def schedule_in(self, delay: Any = None, /, *args: Any, **options: Any) -> Scheduled:
        """Like `schedule_at`, for a time that is `delay` (a timedelta) from now by this host's clock.

        Raises InvalidTime if `delay` is no timedelta, or leads beyond the year 9999.

            remind.schedule_in(timedelta(minutes=5), 7, key="UA1545/2013-01-01", on_conflict="keep")
        """
        return self.schedule_at(time_in(clock.now(), first("schedule_in", delay, options)), *args, **options)

    @key_alone
    def unschedule(self, *_given: Never, key: str) -> bool:
        """End the live message of this task with this key as cancelled. Returns False if there is none.

        An attempt that is running is told when its lease is renewed; what it returns is discarded.
        Raises InvalidKey.

            remind.unschedule(key="UA1545/2013-01-01")
        """
        return self._scheduler().unschedule(self, key)

    aenqueue_many = async_version(enqueue_many)
    aenqueue_bulk = async_version(enqueue_bulk)
    aschedule_at = async_version(schedule_at)
    aschedule_in = async_version(schedule_in)
    aunschedule = async_version(unschedule)

    def _scheduler(self) -> Scheduler:
        backend = self.get_backend()
        if not hasattr(backend, "schedule"):
            name = type(backend).__qualname__
            raise InvalidTask(
                f"{self.name}: its backend {self.backend!r} ({name}) can only enqueue one call at a time. Use "
                "delayedq.backend.DelayedQBackend, or in tests ImmediateBackend or DummyBackend of delayedq.testing."
            )
        return cast("Scheduler", backend)

    def as_stored(self, row: StoredOptions, backend: str | None = None) -> Task[P, R]:
        """The task as it was enqueued: with the options that a message (a row, or what was claimed) has."""
        changes = {**stored_options(self, row), "backend": backend or self.backend}
        stored: Task[P, R] = object.__new__(type(self))  # what is stored is not checked against the settings of today
        for each in fields(self):
            object.__setattr__(stored, each.name, changes.get(each.name, getattr(self, each.name)))
        return stored

    def offer(
        self, args: Iterable[Any], kwargs: Mapping[str, Any], *, when: datetime | None, key: str | None = None
    ) -> Offer:
        """Return the message that a call of `schedule_at` would store, without storing it.

        Raises TypeError if the arguments do not fit the function, InvalidMessage if they can't be stored.
        """
        (offer,) = self.offers([(args, kwargs)], when, key)
        return offer

    def offers(
        self,
        calls: Iterable[AnyCall | WrittenCall],
        when: datetime | None,
        key: str | None = None,
        step: dict[str, Any] | None = None,
    ) -> Iterator[Offer]:
        """The messages that these calls would store, one at a time. Raises what `offer` raises.

        step: what the metadata of the messages of a step of a flow say; the sizes of limits do not hold for them.
        """
        if self.func.__module__ == "__main__":
            raise InvalidTask(f"{self.name} is defined in __main__, where no worker finds it; move it to a module.")
        queue, kind, priority, max_attempts = self.queue_name, self.module_path, self.priority, self.max_attempts
        given_metadata = None if self.metadata is None else dumps(self.metadata)
        known = registered.get(self.module_path, self)
        # A message with a key is that of all who offer it, so it has no parent.
        makers = (current_attempt.get(), None)
        with_parent, without = (
            with_own(given_metadata, own_metadata(self, known, maker) | (step or {})) for maker in makers
        )
        names = parameter_names(self.func, self.takes_context)
        limited = lines_up(self)
        sizes = sizes_of(rules_of(self, queue)) if limited and step is None else ()
        dump = dump_call if step is None else dump_step
        for call in calls:
            payload = call.payload if isinstance(call, WrittenCall) else None
            given, kwargs, at, own_key = as_call(self.name, call if payload is None else call[:2])
            args, own_key = tuple(given), key if own_key is None else own_key
            check_call(self, args, kwargs)
            payload = dump(args, kwargs, names) if payload is None else payload
            warn_naive(self, payload)
            channel = channel_for(self, args, kwargs) if limited else None
            metadata = with_parent if own_key is None else without
            if enqueue_hooks() and own_key is None:
                metadata = with_added(metadata, self)
            yield Offer(queue, kind, payload, own_key, at or when, priority, max_attempts, metadata, channel, sizes)


def parameters_of(task: Task[..., Any]) -> inspect.Signature:
    """The signature of the function as callers see it, without the context."""
    return signature_of(task.func, task.takes_context)


# The `@task` decorator.


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
