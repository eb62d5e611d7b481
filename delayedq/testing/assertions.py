"""Assertions about what is scheduled; failing, they show what is there and the nearest miss."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq import clock
from delayedq.core.serialization import load_call
from delayedq.core.signatures import signature_of
from delayedq.queue import DelayedQueue
from delayedq.queue.reading import live
from delayedq.store import default_store
from delayedq.store.offers import check_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from delayedq.models import Message
    from delayedq.tasks import Task

    Target = Task[..., Any] | DelayedQueue[Any]


#: How many messages a failure lists.
SHOWN = 20


class ScheduledMessage(NamedTuple):
    """A live message: of a task (args, kwargs) or of a bare queue (payload)."""

    at: datetime
    key: str | None
    queue: str
    priority: int = 0
    attempt: int = 0
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payload: Any = None

    def __str__(self) -> str:
        what = f"payload {self.payload!r}" if self.args is None else f"args {self.args!r}, kwargs {self.kwargs!r}"
        return f"{what}, key {self.key!r}, at {self.at.isoformat()}, queue {self.queue!r}"


def scheduled(target: Target) -> list[ScheduledMessage]:
    """The live messages of a task, or of a bare queue, ordered by due time; due or not, leased or not."""
    if isinstance(target, DelayedQueue):
        return [_bare(target, message) for message in live(target.leases).order_by("scheduled_at", "id")]
    if not hasattr(target, "get_backend"):
        raise TypeError(f"What is scheduled belongs to a task or a DelayedQueue, not to {target!r}.")
    backend: Any = target.get_backend()
    if hasattr(backend, "messages"):  # one of `delayedq.testing.backends`
        return sorted(backend.messages(target), key=lambda message: message.at)
    from delayedq.models import Message

    alias = getattr(backend, "store", None) or default_store()
    messages = Message.objects.using(alias.alias).filter(kind=target.module_path).order_by("scheduled_at", "id")
    return [_of_task(message) for message in messages]


def _of_task(message: Message) -> ScheduledMessage:
    args, kwargs = load_call(message.payload)
    return ScheduledMessage(
        message.scheduled_at, message.key, message.queue, message.priority, message.attempt, args, kwargs
    )


def _bare(queue: DelayedQueue[Any], message: Message) -> ScheduledMessage:
    payload = queue.address.read(message.payload, message.metadata).payload
    return ScheduledMessage(message.scheduled_at, message.key, queue.name, attempt=message.attempt, payload=payload)


def assert_scheduled(
    target: Target,
    *,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payload: Any = ...,
    key: str | None = None,
    at: datetime | None = None,
    within: timedelta | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[ScheduledMessage]:
    """Raise AssertionError unless the task, or the bare queue, has live messages like this; returns them.

    Omitted parameters are not compared. args, kwargs: these arguments, by position or by name; other arguments may have
    any value. payload: the payload, for a bare queue. at: the due time (aware), to the second, or up to `within`
    (timedelta) before or after it. within, without `at`: due at most this long from now. queue: the name of the queue.
    count: exactly this many messages; without it at least one.

        assert_scheduled(remind, args=[7], key="a", at=departure, within=timedelta(minutes=1))
    """
    there = scheduled(target)
    wanted = _WantedMessage(target, args, kwargs, payload, key, at, within, queue)
    found = [message for message in there if not wanted.misses(message)]
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(f"Expected {_number(count)} of {wanted}; {len(found)} found.\n{wanted.compared(there)}")


def assert_not_scheduled(
    target: Target,
    *,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payload: Any = ...,
    key: str | None = None,
    at: datetime | None = None,
    within: timedelta | None = None,
    queue: str | None = None,
) -> None:
    """Raise AssertionError if there is a live message like this; see `assert_scheduled`."""
    assert_scheduled(
        target, args=args, kwargs=kwargs, payload=payload, key=key, at=at, within=within, queue=queue, count=0
    )


def _number(count: int | None) -> str:
    match count:
        case None | 1:
            return "a message" if count is None else "1 message"
        case 0:
            return "no message"
        case _:
            return f"{count} messages"


class _WantedMessage:
    def __init__(
        self,
        target: Target,
        args: Iterable[Any] | None,
        kwargs: Mapping[str, Any] | None,
        payload: Any,
        key: str | None,
        at: datetime | None,
        within: timedelta | None,
        queue: str | None,
    ) -> None:
        self._target = target
        self._fields = {"key": key, "queue": queue}
        self._arguments = None if args is None and kwargs is None else self._bound(args or (), kwargs or {})
        if payload is not ... and not isinstance(target, DelayedQueue):
            raise TypeError("A task has arguments: compare with args= and kwargs=, not with payload.")
        self._payload = payload
        self._earliest, self._latest = _range(at, within)

    def _bound(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(self._target, DelayedQueue):
            raise TypeError("A bare queue has payloads: compare with payload=, not with args or kwargs.")
        signature = signature_of(self._target.func, self._target.takes_context)
        try:
            return dict(signature.bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._target.name}: {error}") from None

    def _stored(self, message: ScheduledMessage) -> dict[str, Any]:
        """The arguments of a message; of one that does not fit the function any more, those that have names."""
        try:
            return self._bound(message.args or (), message.kwargs or {})
        except TypeError:
            return dict(message.kwargs or {})

    def misses(self, message: ScheduledMessage) -> list[str]:
        """What this message has that is not wanted: one line for each."""
        lines = []
        for name, wanted in self._fields.items():
            if wanted is not None and getattr(message, name) != wanted:
                lines.append(_diff(name, wanted, getattr(message, name)))
        if self._arguments is not None:
            has = self._stored(message)
            for name, wanted in self._arguments.items():
                if name not in has or has[name] != wanted:
                    lines.append(_diff(f"argument {name}", wanted, has.get(name, _DEFAULT)))
        if self._payload is not ... and message.payload != self._payload:
            lines.append(_diff("payload", self._payload, message.payload))
        if not self._earliest <= message.at <= self._latest:
            lines.append(f"  at: expected {self._when()}\n      found    {message.at.isoformat()}")
        return lines

    def compared(self, there: list[ScheduledMessage]) -> str:
        if not there:
            return "Nothing is scheduled."
        nearest = min(there, key=lambda message: len(self.misses(message)))
        misses = self.misses(nearest)
        difference = [f"The nearest is {nearest}; it differs in:", *misses] if misses else []
        shown = [f"  {message}" for message in there[:SHOWN]]
        if len(there) > SHOWN:
            shown.append(f"  and {len(there) - SHOWN:,} more")
        return "\n".join([*difference, "Scheduled are:", *shown])

    def _when(self) -> str:
        return f"{'' if self._earliest == _FIRST else f'{self._earliest.isoformat()} '}to {self._latest.isoformat()}"

    def __str__(self) -> str:
        name = repr(self._target) if isinstance(self._target, DelayedQueue) else self._target.module_path
        given = {
            **(self._arguments or {}),
            **{name: value for name, value in self._fields.items() if value is not None},
        }
        if self._payload is not ...:
            given["payload"] = self._payload
        if self._latest != _LAST:
            given["at"] = self._when()
        return f"{name} with {given}" if given else name


class _Default:
    def __repr__(self) -> str:
        return "(its default)"


_DEFAULT = _Default()


def _diff(name: str, wanted: object, found: object) -> str:
    return f"  {name}: expected {wanted!r}\n  {' ' * len(name)}  found    {found!r}"


#: What any time lies between.
_FIRST, _LAST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))  # noqa: DTZ901


def _range(at: datetime | None, within: timedelta | None) -> tuple[datetime, datetime]:
    if at is not None:
        check_time(at)
    if not isinstance(within, timedelta | None):
        raise TypeError(f"within is a timedelta, not {within!r}.")
    if at is not None:
        near = timedelta(seconds=1) if within is None else within
        return at.astimezone(UTC) - near, at.astimezone(UTC) + near
    return (_FIRST, _LAST) if within is None else (_FIRST, clock.now() + within)
