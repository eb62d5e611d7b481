"""The address of a bare queue: the column values of its rows, and how its messages are written and read."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import CannotRun, InvalidMessage, InvalidQueue, NotStorable
from delayedq.limits.of_queues import NO_CHANNELS, QueueChannels
from delayedq.store.offers import check_time
from delayedq.store.protocol import BARE, Offer
from delayedq.tasks.options import MOST_ATTEMPTS

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.queue.serializers import Serializer

#: Prefix of the names of temporary queues; other queues may not have it.
REPLY = "reply~"


class Content[P](NamedTuple):
    """A message as read: its payload, and its headers ("state", "reply_to")."""

    payload: P
    headers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueueAddress[P]:
    """The rows of a bare queue have `queue` as their queue and as their kind.

    max_attempts: number of deliveries after which a message becomes a dead letter.
    priorities: those that its messages may have. channels: those that they wait in.
    Raises InvalidQueue for names that can't be stored.
    """

    name: str
    serializer: Serializer[P]
    max_attempts: int
    priorities: tuple[int, ...] = (0,)
    channels: QueueChannels = NO_CHANNELS

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _check_name("type_name", self.serializer.type_name)
        if len(self.queue) > NAME_LENGTH:
            raise InvalidQueue(f"{self.queue[:40]!r}… has over {NAME_LENGTH} characters, those of its type included.")

    @property
    def queue(self) -> str:
        return f"{self.name}{BARE}{self.serializer.type_name}"

    def offer(
        self,
        key: str | None,
        payload: P,
        schedule_at: datetime | None,
        reply_to: str | None = None,
        *,
        priority: int = 0,
        max_attempts: int | None = None,
        channel: str | None = None,
    ) -> Offer:
        """Return the message to store. Raises InvalidMessage for values that can't be stored."""
        if schedule_at is not None:
            check_time(schedule_at)
        waits_in, sizes = self.channels.terms(self.queue, channel)
        headers = None if reply_to is None else dumps({"reply_to": reply_to})
        return Offer(
            queue=self.queue,
            kind=self.queue,
            payload=_storable(self.serializer.serialize(payload)),
            key=key,
            scheduled_at=schedule_at,
            priority=self._declared(priority),
            max_attempts=self.max_attempts if max_attempts is None else _attempts(max_attempts),
            metadata=headers,
            channel=waits_in,
            sizes=sizes,
        )

    def _declared(self, priority: object) -> int:
        if type(priority) is not int or priority not in self.priorities:
            declared = ", ".join(map(str, self.priorities))
            raise InvalidMessage(
                f"The queue {self.name!r} has the priorities {declared}, and not {priority!r}, which its consumers "
                "would not see. Declare it with DelayedQueue(priorities=...) wherever this queue is made."
            )
        return priority

    def read(self, payload: str, metadata: str | None) -> Content[P]:
        """Raises ValueError; a faulty serializer may raise any exception."""
        return Content(self.serializer.deserialize(payload), read_headers(metadata))


def read_headers(metadata: str | None) -> dict[str, Any]:
    """The headers in a metadata column. Raises ValueError if it has other content."""
    try:
        headers = loads(metadata) if metadata else {}
    except CannotRun as error:
        raise ValueError(str(error)) from error
    if not isinstance(headers, dict):
        raise ValueError(f"The metadata of a message is a JSON object, not {metadata!r}.")  # noqa: TRY004 its text is wrong
    return headers


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidQueue(f"The {what} of a queue is a text that is not blank, not {name!r}.")
    if BARE in name or not is_storable(name):
        raise InvalidQueue(f"The {what} of a queue can't contain {BARE!r}, NUL or a lone surrogate: {name!r}.")


def _attempts(wanted: object) -> int:
    if type(wanted) is not int or not 1 <= wanted <= MOST_ATTEMPTS:
        raise InvalidMessage(f"The max_attempts of a message is a number from 1 to {MOST_ATTEMPTS:,}, not {wanted!r}.")
    return wanted


def _storable(text: object) -> str:
    if not isinstance(text, str):
        raise NotStorable(f"A serializer must return a str, not {text!r}.")
    if not is_storable(text):
        raise NotStorable(f"The text of a payload can't contain NUL or a lone surrogate: {text[:40]!r}.")
    return text


# The priorities that the queues of this process declare: what an operator may give to a waiting message.
#
# They stand in code and not in the database. A priority that no consumer declares is one that no consumer polls.


#: At most this many queues with priorities of their own are known, those that were declared last.
MOST_KNOWN = 10_000

_known: dict[str, tuple[int, ...]] = {}

_lock = Lock()

#: Every queue has it.
_ALWAYS = (0,)


def declare(queue: str, priorities: tuple[int, ...]) -> None:
    """Note the priorities of a queue, by its stored name. Two objects of one queue add up."""
    if priorities == _ALWAYS:
        return
    with _lock:
        known = {*_known.pop(queue, ()), *priorities}
        _known[queue] = tuple(sorted(known, reverse=True))
        if len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]


def declared(queue: str) -> tuple[int, ...]:
    """The priorities of a queue, by its stored name, the most urgent first; 0 alone if this process knows no others."""
    return _known.get(queue, _ALWAYS)
