"""The polling half of a queue: without and with waiting, one message or many, in a transaction, filtered."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.db import DataError, Error, connections, transaction

from delayedq.core.backoff import as_backoff
from delayedq.core.conditions import meets
from delayedq.exceptions import INTERRUPTIONS, InvalidQueue, QueueClosed, WorkerVanished
from delayedq.queue.batch import Batch
from delayedq.queue.envelope import Envelope
from delayedq.queue.leases import Settlement, check_duration, consumer
from delayedq.queue.producer import Base
from delayedq.queue.reading import waiting
from delayedq.queue.watch import Watch, ring
from delayedq.store.protocol import GiveBack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from datetime import datetime

    from delayedq.core.backoff import Backoff
    from delayedq.models import Message
    from delayedq.store.protocol import Claimed

#: The shortest wait in seconds: messages that are due but locked must not cause a busy loop.
SHORTEST_WAIT = 0.001
#: The largest number that all databases take as a limit.
MOST_POLLED = 2**63 - 1


class Consumer[P](Base[P]):
    """The polling methods of `DelayedQueue`. `atry_poll`, `atry_poll_many` and `apoll` are their async versions."""

    def try_poll(self, *, lease: timedelta | None = None) -> Envelope[P] | None:
        """Return the message that was due first, leased to the caller; None if nothing is due. Does not wait.

        A higher priority comes first. `lease` (timedelta; None: that of the queue) is how long it is leased, here and
        in all polls. Raises QueueClosed; InvalidQueue for a wrong `lease`.
        """
        envelopes = self._take(1, lease)
        return envelopes[0] if envelopes else None

    def try_poll_many(self, limit: int, *, lease: timedelta | None = None) -> Batch[P]:
        """Return at most `limit` messages, ordered by priority and due time; none for a limit of 0 or less.

        Does not wait. Raises InvalidQueue for a limit that is no whole number.
        """
        _check_limit(limit)
        return Batch(self.leases, self._take(limit, lease))

    def poll(self, timeout: timedelta | None = None, *, lease: timedelta | None = None) -> Envelope[P] | None:
        """Wait for a message; None if none was due within `timeout` (timedelta; None waits without limit).

        An offer of this process wakes it at once; one of another process at once on databases with notifications
        (PostgreSQL), on others within the poll interval. Raises QueueClosed if the queue is closed while it waits;
        InvalidQueue for a timeout that is no timedelta.
        """
        give_up_at = _deadline(timeout)
        with self._watch() as watch:
            return self._await(watch, give_up_at, lease)

    def __iter__(self) -> Iterator[Envelope[P]]:
        """Wait for one message after another, until the queue is closed."""
        with self._watch() as watch, suppress(QueueClosed):
            while envelope := self._await(watch, inf):
                yield envelope

    @contextmanager
    def transaction(
        self, backoff: Backoff | timedelta | None = None, *, lease: timedelta | None = None
    ) -> Iterator[Envelope[P] | None]:
        """Poll a message (None if nothing is due), and end it in the transaction in which the body runs: exactly once.

        What the body writes to the queue's database is committed together with the end of the message. For errors see
        `Envelope.transaction`, also for `backoff`. Raises RuntimeError if the caller has a transaction open.

            with contacts.transaction() as envelope:
                if envelope:
                    User.objects.create(username=envelope.payload)
        """
        if backoff is not None:
            as_backoff(backoff)
        with transaction.atomic(using=self.leases.alias, durable=True):  # the claim commits before the body begins
            envelope = self.try_poll(lease=lease)
        if envelope is None:
            yield None
            return
        with envelope.transaction(backoff):
            yield envelope

    def filter(self, **wanted: Any) -> Self:
        """Return a view of this queue that polls, counts and browses only messages that meet all conditions.

        `payload__region="eu"`: the value at this path in the payload (JSON) is the whole of this one; `__in` takes
        several. `payload__size__width__gte=3` (`__gt`, `__lt`, `__lte`): it is a number in this range.
        `key__startswith="UA1545"`: the key begins so, case-sensitively; for payloads of any type.

        A poll reads all due messages that don't match, so use it if most messages match, or few wait; if at most 1,000
        have a key of the prefix, only those. Closing the view closes the queue, and vice versa.
        Raises InvalidQueue for wrong names and values, or if payloads are not JSON; NotStorable for a value without a
        JSON form. A queue with channels can be browsed and counted so, not polled.

            contacts.filter(payload__region__in=["eu", "us"], payload__age__gte=18).try_poll()
        """
        view = copy.copy(self)
        view._filter = self._filter.narrowed(self.address.serializer, wanted)  # noqa: SLF001 - a copy
        return view

    # Claiming

    def _take(self, limit: int, lease: timedelta | None) -> list[Envelope[P]]:
        """Claim messages and return those that can be read; the others become dead letters, and more are claimed."""
        if lease is not None:
            check_duration("lease", lease)
        duration = lease or self.leases.duration()
        while claims := self._claim(limit, duration):
            if envelopes := self._open(claims, duration):
                return envelopes
        return []

    def _claim(self, limit: int, lease: timedelta) -> list[Claimed]:
        if limit <= 0:
            return []
        try:
            return self.leases.claim(limit, self._filter, lease)
        except DataError:
            self._set_aside_unreadable()
            return self.leases.claim(limit, self._filter, lease)

    def _open(self, claims: Sequence[Claimed], lease: timedelta) -> list[Envelope[P]]:
        envelopes: list[Envelope[P]] = []
        refused: dict[Claimed, Exception] = {}
        for claimed in claims:
            try:
                envelopes.append(self._envelope(claimed, lease))
            except (Error, *INTERRUPTIONS):
                with suppress(Error):  # if this fails, they come back when their leases end
                    self._release(claims)
                raise
            except Exception as reason:  # noqa: BLE001 - the serializer may be user code
                refused[claimed] = reason
        if refused:
            self.leases.set_aside(refused)
        return envelopes

    def _envelope(self, claimed: Claimed, lease: timedelta) -> Envelope[P]:
        if claimed.attempt > claimed.max_attempts:
            raise WorkerVanished(f"It was delivered {claimed.attempt - 1} times, which is its max_attempts.")
        content = self.address.read(claimed.payload, claimed.metadata)
        return Envelope(self.address, self.leases, claimed, content, lease)

    def _release(self, claims: Sequence[Claimed]) -> None:
        self.leases.settle([Settlement(GiveBack(claimed, charged=False)) for claimed in claims], time.monotonic())

    def _set_aside_unreadable(self) -> None:
        """Set aside messages whose payload is not JSON: the database could not evaluate the filter on them."""
        lease = self.leases.duration()
        for message in waiting(self.leases).iterator():
            reason = self._flaw(message)
            if reason is None:
                continue
            if claimed := self.leases.store.claim_unchanged(message.id, message.generation, lease, consumer()):
                self.leases.set_aside({claimed: reason})

    def _flaw(self, message: Message) -> ValueError | None:
        """Why its payload can't be read, or is no JSON to a database: Python reads NaN."""
        try:
            self.address.read(message.payload, message.metadata)
        except ValueError as reason:
            return reason
        return None if meets(message.payload, ()) else ValueError(f"The payload is not JSON: {message.payload[:40]!r}")

    # Waiting

    def _watch(self) -> Watch:
        return Watch(self.leases.store, self.address.queue)

    def _await(
        self,
        watch: Watch,
        give_up_at: float,
        lease: timedelta | None = None,
        given_up: threading.Event | None = None,
    ) -> Envelope[P] | None:
        if envelope := self.try_poll(lease=lease):
            return envelope
        while (left := give_up_at - time.monotonic()) > 0 and not (given_up and given_up.is_set()):
            watch.listen()
            scanned_at = self.leases.store.now()
            if envelope := self.try_poll(lease=lease):
                return envelope
            watch.wait(min(left, self._due_in(scanned_at)))
        if given_up and given_up.is_set():
            return None
        return self.try_poll(lease=lease)  # what came while nothing could wake it is found at the deadline

    def _due_in(self, scanned_at: datetime) -> float:
        """Longest sleep in seconds. Ignores what was due at `scanned_at`: a poll did not get it (locked, no match)."""
        heads = self.leases.store.peek(self.leases.lanes(scanned_at))
        channels = [] if self.leases.channels_due_in is None else [self.leases.channels_due_in]
        return max(SHORTEST_WAIT, min([self.patience(), *channels, *(head.due_in for head in heads)]))

    # Async: if the caller is cancelled, what was claimed meanwhile is given back uncharged

    async def atry_poll(self, *, lease: timedelta | None = None) -> Envelope[P] | None:
        """The async version of `try_poll`."""
        return await _unless_cancelled(sync_to_async(self.try_poll)(lease=lease))

    async def atry_poll_many(self, limit: int, *, lease: timedelta | None = None) -> Batch[P]:
        """The async version of `try_poll_many`."""
        return await _unless_cancelled(sync_to_async(self.try_poll_many)(limit, lease=lease))

    async def apoll(
        self,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - as poll() has it
        *,
        lease: timedelta | None = None,
    ) -> Envelope[P] | None:
        """`poll`, which waits in a thread of its own."""
        give_up_at = _deadline(timeout)
        if envelope := await self.atry_poll(lease=lease):
            return envelope
        given_up = threading.Event()
        thread = ThreadPoolExecutor(1, thread_name_prefix="delayedq-poll")
        polling = asyncio.get_running_loop().run_in_executor(thread, self._poll_apart, give_up_at, lease, given_up)
        try:
            return await _unless_cancelled(polling, lambda: self._give_up(given_up))
        finally:
            thread.shutdown(wait=False)

    def _give_up(self, given_up: threading.Event) -> None:
        given_up.set()
        ring(self.leases.alias, self.address.queue)

    def _poll_apart(self, give_up_at: float, lease: timedelta | None, given_up: threading.Event) -> Envelope[P] | None:
        try:
            with self._watch() as watch:
                return self._await(watch, give_up_at, lease, given_up)
        finally:
            connections[self.leases.alias].close()

    async def __aiter__(self) -> AsyncIterator[Envelope[P]]:
        """Wait for one message after another, until the queue is closed."""
        await sync_to_async(self._watch)()
        with suppress(QueueClosed):
            while envelope := await self.apoll():
                yield envelope


async def _unless_cancelled[T](claiming: Awaitable[T], give_up: Callable[[], None] = lambda: None) -> T:
    polling = asyncio.ensure_future(claiming)
    try:
        return await asyncio.shield(polling)
    except asyncio.CancelledError:
        give_up()
        with suppress(Error, QueueClosed):
            claimed = await polling
            if isinstance(claimed, Envelope | Batch):
                await claimed.arelease()
        raise


def _deadline(timeout: timedelta | None) -> float:
    if timeout is None:
        return inf
    if not isinstance(timeout, timedelta):
        raise InvalidQueue(f"The timeout of a poll is a timedelta, or None to wait without limit, not {timeout!r}.")
    return time.monotonic() + timeout.total_seconds()


def _check_limit(limit: object) -> None:
    if type(limit) is not int or limit > MOST_POLLED:
        raise InvalidQueue(f"The limit of a poll is a whole number up to 2**63 - 1, not {limit!r}.")
