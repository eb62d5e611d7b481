"""The result of browse(): messages in the order of claims, read page by page, and a cursor to go on from."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Self

from asgiref.sync import sync_to_async

from delayedq.core.instants import instant, microseconds
from delayedq.exceptions import InvalidQueue
from delayedq.queue.reading import Reading
from delayedq.store.bare_queues import START
from delayedq.store.operator import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.queue.address import QueueAddress
    from delayedq.queue.filters import Filter
    from delayedq.queue.leases import Leases
    from delayedq.store.bare_queues import Browsed
    from delayedq.store.protocol import Lane

#: A statement reads at most this many messages.
PAGE = 200

#: Of the form of cursors: raise it with every change.
VERSION = "1"
_BODY = re.compile(r"(-?\d{1,4})/(-?\d{1,18})/(\d{1,19})")


class QueuePosition(NamedTuple):
    """A message's place in the order of claims."""

    priority: int
    position: Position


class Readings[P]:
    """The messages of a queue that are not leased, each as a `Reading`, in the order of claims. See `Browsing`."""

    def __init__(self, address: QueueAddress[P], leases: Leases, chosen: Filter, after: str | None) -> None:
        self._address = address
        self._leases = leases
        self._filter = chosen
        self._place = None if after is None else place_in(after, address.queue)
        self._to_read = deque(_from(self._place, leases.all_lanes() if leases.has_channels else leases.lanes()))
        self._page: deque[tuple[QueuePosition, Reading[P]]] = deque()

    @property
    def cursor(self) -> str | None:
        return None if self._place is None else cursor_of(self._place, self._address.queue)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Reading[P]:
        while not self._page:
            if not self._to_read:
                raise StopIteration
            self._read()
        return self._turn()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reading[P]:
        while not self._page:
            if not self._to_read:
                raise StopAsyncIteration
            await sync_to_async(self._read)()
        return self._turn()

    def _turn(self) -> Reading[P]:
        self._place, reading = self._page.popleft()
        return reading

    def _read(self) -> None:
        """Read one more page; the filter may let none of it through."""
        lane, after = self._to_read[0]
        rows = self._leases.store.browse(lane, after, PAGE)
        self._page.extend(self._shown(lane, rows))
        self._to_read.popleft()
        if len(rows) == PAGE:
            self._to_read.appendleft((lane, rows[-1].position))

    def _shown(self, lane: Lane, rows: list[Browsed]) -> Iterator[tuple[QueuePosition, Reading[P]]]:
        for row in rows:
            if row.payload is not None and self._filter.passes(row.key, row.payload):
                with suppress(ValueError):
                    content = self._address.read(row.payload, row.metadata)
                    yield QueuePosition(lane.priority, row.position), Reading(self._leases, row, content)


class Browsing[P]:
    """The payloads of the messages that are not leased: the highest priority first, in each by due time, then by id.

    It reads up to 200 messages with one statement when it has handed out those before; what that costs does not grow
    with how deep in the queue they are. `async for` works too.

    A message that stays where it is all the while is seen exactly once. Of others: what is offered, leased or given
    back meanwhile is seen or not, and what gets another time or priority may be seen twice or not at all.
    """

    def __init__(self, readings: Readings[P]) -> None:
        #: The same messages, as `Reading`: with key, due time, attempts and state. Both move on together.
        self.readings = readings

    @property
    def cursor(self) -> str | None:
        """The text with which browse(after=...) goes on behind the message handed out last; None: from the start.

        Printable ASCII without blanks, at most 100 characters. Any process may use it, at any time, with any filter of
        the same queue.
        """
        return self.readings.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> P:
        return next(self.readings).payload

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> P:
        return (await anext(self.readings)).payload


def _from(place: QueuePosition | None, lanes: list[Lane]) -> Iterator[tuple[Lane, Position]]:
    """The lanes that are still to be read, and after which position. That of the place may be declared no more."""
    for lane in lanes:
        if place is None or lane.priority < place.priority:
            yield lane, START
        elif lane.priority == place.priority:
            yield lane, place.position


# Cursors


def cursor_of(place: QueuePosition, queue: str) -> str:
    return _cursor(f"{place.priority}/{microseconds(place.position.at)}/{place.position.id}", queue)


def _cursor(body: str, queue: str) -> str:
    check = blake2b(f"{queue}/{body}".encode(), digest_size=4).hexdigest()
    return f"{VERSION}.{urlsafe_b64encode(f'{body}/{check}'.encode()).decode().rstrip('=')}"


def place_in(cursor: object, queue: str) -> QueuePosition:
    """Raises InvalidQueue for what `cursor_of` did not make for this queue."""
    version, _, encoded = cursor.partition(".") if isinstance(cursor, str) else ("", "", "")
    with suppress(ValueError, OverflowError):
        body = urlsafe_b64decode(f"{encoded}{'=' * (-len(encoded) % 4)}").decode().rpartition("/")[0]
        if _cursor(body, queue) == cursor and (found := _BODY.fullmatch(body)):
            priority, at, id_ = map(int, found.groups())
            return QueuePosition(priority, Position(instant(at), id_))
    if version != VERSION and version.isdecimal():
        raise InvalidQueue(f"Cursor {cursor!r} is of another version of delayedq: browse from the start, without it.")
    raise InvalidQueue(
        f"{cursor!r} is not a cursor of the queue {queue!r}: it was altered or cut off, or is of another queue. "
        "Pass the cursor of an earlier browse() unchanged; without one, browse() starts at the beginning."
    )
