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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from delayedq.models import Message
    from delayedq.tasks import Task

    Target = Task[..., Any] | DelayedQueue[Any]


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

    What is not given is not compared. args, kwargs: these arguments, by position or by name; those that are not given
    may have any value. payload: of a bare queue. at: the due time (aware), to the second, or up to `within` (timedelta)
    before or after it. within, without `at`: due at most this long from now. queue: the name of the queue. count:
    exactly this many messages; without it at least one.

        assert_scheduled(remind, args=[7], key="a", at=departure, within=timedelta(minutes=1))
    """
    wanted = _Wanted(target, args, kwargs, payload, key, at, within, queue)
    there = scheduled(target)
    found = [message for message in there if not wanted.misses(message)]
    if len(found) == count or (count is None and found):
        return found
    expected = "a message" if count is None else f"{count} message(s)"
    raise AssertionError(f"Expected {expected} of {wanted}; {len(found)} found.\n{wanted.compared(there)}")


def assert_not_scheduled(target: Target, **wanted: Any) -> None:
    """Raise AssertionError if there is a live message like this. Takes what `assert_scheduled` takes, but no count."""
    assert_scheduled(target, **wanted, count=0)


class _Wanted:
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
        self._payload = payload
        self._earliest, self._latest = _range(at, within)

    def _bound(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(self._target, DelayedQueue):
            raise TypeError("A bare queue has payloads: compare with payload=, not with args or kwargs.")
        signature = signature_of(self._target.func, self._target.takes_context)
        return dict(signature.bind_partial(*args, **kwargs).arguments)

    def misses(self, message: ScheduledMessage) -> list[str]:
        """What this message has that is not wanted: one line for each."""
        lines = []
        for name, wanted in self._fields.items():
            if wanted is not None and getattr(message, name) != wanted:
                lines.append(_diff(name, wanted, getattr(message, name)))
        if self._arguments is not None:
            has = self._bound(message.args or (), message.kwargs or {})
            for name, wanted in self._arguments.items():
                if name not in has or has[name] != wanted:
                    lines.append(_diff(f"argument {name}", wanted, has.get(name, "(its default)")))
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
        return "\n".join([*difference, "Scheduled are:", *(f"  {message}" for message in there)])

    def _when(self) -> str:
        return f"{self._earliest.isoformat()} to {self._latest.isoformat()}"

    def __str__(self) -> str:
        name = repr(self._target) if isinstance(self._target, DelayedQueue) else self._target.module_path
        given = {
            **(self._arguments or {}),
            **{name: value for name, value in self._fields.items() if value is not None},
        }
        if self._payload is not ...:
            given["payload"] = self._payload
        return f"{name} with {given}" if given else name


def _diff(name: str, wanted: object, found: object) -> str:
    return f"  {name}: expected {wanted!r}\n  {' ' * len(name)}  found    {found!r}"


def _range(at: datetime | None, within: timedelta | None) -> tuple[datetime, datetime]:
    earliest, latest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    if at is not None:
        near = timedelta(seconds=1) if within is None else within
        return at - near, at + near
    return (earliest, latest) if within is None else (earliest, clock.now() + within)
