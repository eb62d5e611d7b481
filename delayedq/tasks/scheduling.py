"""The part of a backend beyond `django.tasks`: schedule by time and key, many at once, and take back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

from django.conf import global_settings, settings

from delayedq.compat import InvalidTask
from delayedq.core.other_names import TIMES
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from delayedq.compat import Task as DjangoTask
    from delayedq.store.protocol import Conflict, Offered, OfferOutcome
    from delayedq.tasks.verbs import Task

    type AnyCall = tuple[Iterable[Any], Mapping[str, Any]] | Call


#: What the first argument of a verb is.
_TIMES = {"schedule_at": "when", "schedule_in": "timedelta(minutes=5)"}


class _NoKey:
    def __repr__(self) -> str:
        return "<no key>"


#: In the place of a key that was not given; None, where one was computed, says that there is none.
NO_KEY: Any = _NoKey()
#: What named arguments almost always are: a question that costs less than whether they are a Mapping.
_MAPPINGS = (dict, MappingProxyType)
_NO_NAMES: Mapping[str, Any] = MappingProxyType({})


class _CallFields(NamedTuple):
    args: Iterable[Any] = ()
    kwargs: Mapping[str, Any] = _NO_NAMES
    at: datetime | None = None
    key: str | None = None


class Call(_CallFields):
    """A call of a task for `enqueue_many` and `enqueue_bulk`, which may have its own time and key.

    at: when the message is due (aware datetime); None: now, or at the `run_after` of the task.
    key: see `Task.schedule_at`; a live message with this key is replaced.

        remind.enqueue_bulk(Call((flight.id,), at=flight.departure, key=flight.code) for flight in flights)
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __new__(cls, args=(), kwargs=_NO_NAMES, at=None, key=None, **others):
            """Names the cure where Python would name the argument alone."""
            if others:
                raise _wrong_call(others)
            return tuple.__new__(cls, (args, kwargs, at, key))


def _wrong_call(others: Mapping[str, Any]) -> TypeError:
    if "on_conflict" in others:
        cure = "A live message with its key is replaced. For another policy, call task.schedule_at(when, ..., key=...)."
    else:
        cure = "Arguments of the task stand in args and kwargs, as in Call((7,), {'name': 8}, at=when, key='UA1545')."
    return TypeError(f"A Call has args, kwargs, at and key, not {', '.join(others)}. {cure}")


def as_call(task: str, call: Iterable[Any]) -> Call:
    """One call of many. Raises TypeError, naming the task, for what is no pair of positional and named arguments."""
    try:
        made = call if type(call) is Call else Call(*call)
    except TypeError:
        made = Call(args="")
    if type(made.args) is tuple and type(made.kwargs) in _MAPPINGS:
        return made
    if isinstance(made.args, str) or not hasattr(made.args, "__iter__") or not isinstance(made.kwargs, Mapping):
        raise TypeError(
            f"{task}: each call is a pair as in ((7,), {{}}), or a Call as in Call((7,), at=...), not {call!r}."
        )
    return made


def enqueuing_backend(task: DjangoTask[..., Any]) -> Any:
    """The backend of the task. Raises InvalidTask without TASKS: Django would run the task at once, and say nothing."""
    backend = task.get_backend()
    if hasattr(backend, "schedule") or not _is_default(getattr(settings, "TASKS", None)):
        return backend
    raise InvalidTask(
        f"{task.name} can't be enqueued: TASKS is not set. Set TASKS = "
        '{"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}, or in tests "delayedq.testing.ImmediateBackend".'
    )


def _is_default(configured: object) -> bool:
    return configured is None or configured is getattr(global_settings, "TASKS", None)


def first[T](verb: str, given: T, named: Mapping[str, Any]) -> T:
    """The first argument of a verb, which is its time. Raises TypeError for a time that was given by a name."""
    if isinstance(given, datetime | timedelta) or not (names := TIMES & named.keys()):
        return given
    raise TypeError(f"The time comes first, without a name, as in {verb}({_TIMES[verb]}, ...): not as {min(names)}=.")


def keyed(key: str | None, on_conflict: Conflict) -> tuple[str | None, OnConflict]:
    """Raises ValueError for what is no policy, and for one that can have no effect, as no key was given."""
    chosen = OnConflict(on_conflict)
    if key is not NO_KEY:
        return key, chosen
    if chosen is not OnConflict.REPLACE:
        raise ValueError(f"on_conflict={chosen.value!r} needs a key=: without one, there is no other message to find.")
    return None, chosen


def key_alone[**P, R](verb: Callable[P, R]) -> Callable[P, R]:
    """A method that takes a key by name and nothing else, and says so, where Python would count the arguments."""
    name = verb.__name__

    @wraps(verb)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        if len(args) > 1 or named.keys() != {"key"}:
            example = named.get("key", *args[1:2] or ("UA1545",))
            raise TypeError(
                f"{name}() takes the key alone, by its name, as in {name}(key={example!r}), and no arguments."
            )
        return verb(*args, **named)

    return checked


class Changes(TypedDict, total=False):
    """What `Task.using` changes; None keeps the value."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None
    max_attempts: int | None
    deadline: timedelta | None
    expires: timedelta | None
    metadata: Mapping[str, Any] | None
    channel: str | None


class Scheduler(Protocol):
    """A backend with the verbs that `django.tasks` does not have."""

    def schedule(
        self,
        task: Task[..., Any],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        when: datetime,
        key: str | None,
        on_conflict: OnConflict,
    ) -> Scheduled: ...

    def enqueue_many(self, task: Task[..., Any], calls: Iterable[AnyCall]) -> list[Scheduled]: ...

    def enqueue_bulk(self, task: Task[..., Any], calls: Iterable[AnyCall], chunk_size: int) -> int: ...

    def unschedule(self, task: Task[..., Any], key: str) -> bool: ...


class StoredOptions(Protocol):
    """What a message, live or ended or claimed, knows of the task that it was made for."""

    @property
    def queue(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def max_attempts(self) -> int: ...

    @property
    def metadata(self) -> str | None: ...

    @property
    def scheduled_at_initially(self) -> datetime: ...

    @property
    def created_at(self) -> datetime: ...


class Scheduled(NamedTuple):
    """The outcome of an offer, and the id (a str) under which the backend's `get_result` finds the message.

    `id` is None if the offer was DROPPED, or if it was IGNORED and the message that caused this ended at the same
    moment. `size` (int): the number of messages now in the limit of the task with the least room left; None: no
    limit has a size.
    """

    outcome: OfferOutcome
    id: str | None
    size: int | None = None

    @classmethod
    def of(cls, offered: Offered) -> Scheduled:
        """From what the store returns."""
        return cls(offered.outcome, None if offered.id is None else str(offered.id), offered.size)
