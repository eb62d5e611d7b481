"""Ways out of the queue: at once, waiting, one by one, many, in a transaction, or only what a filter lets through."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.db import DataError, Error, connections, transaction

from delayedq.core.backoff import as_backoff
from delayedq.exceptions import QueueClosed, WorkerVanished
from delayedq.queue.base import Base
from delayedq.queue.batch import Batch
from delayedq.queue.envelope import Envelope
from delayedq.queue.filters import conditions
from delayedq.queue.leases import End, consumer
from delayedq.queue.reading import waiting
from delayedq.queue.watch import Watch, ring
from delayedq.store.protocol import GiveBack, Lane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from datetime import datetime, timedelta

    from delayedq.core.backoff import Backoff
    from delayedq.store.protocol import Claimed

#: A wait is never shorter (seconds), so that what is due but can't be claimed makes nobody spin.
SHORTEST_WAIT = 0.001


class Consumer[P](Base[P]):
    def try_poll(self) -> Envelope[P] | None:
        """The message that is due first, leased to the caller; None if nothing is due. Never waits."""
        envelopes = self._take(1)
        return envelopes[0] if envelopes else None

    def try_poll_many(self, limit: int) -> Batch[P]:
        """Up to `limit` messages, in the order in which they are due; none for a limit of zero or less."""
        return Batch(self.leases, self._take(limit))

    def poll(self, timeout: timedelta | None = None) -> Envelope[P] | None:
        """Wait for a message; None if none was due within the timeout (a timedelta; None waits for ever).

        Offers of any process wake it at once where the database can tell, and else within the poll interval. Raises
        QueueClosed when the queue is closed meanwhile.
        """
        with self._watch() as watch:
            return self._await(watch, _deadline(timeout))

    def __iter__(self) -> Iterator[Envelope[P]]:
        """Wait for one message after the other, until the queue is closed."""
        with self._watch() as watch, suppress(QueueClosed):
            while envelope := self._await(watch, inf):
                yield envelope

    @contextmanager
    def transaction(self, backoff: Backoff | timedelta | None = None) -> Iterator[Envelope[P] | None]:
        """The next message (None if nothing is due), and a transaction around the body that ends it: exactly once.

        What the body writes to the queue's database commits together with the end of the message. See
        `Envelope.transaction` for what errors do. Raises RuntimeError within a transaction.
        """
        if backoff is not None:
            as_backoff(backoff)
        with transaction.atomic(using=self.leases.alias, durable=True):  # the claim commits before the body begins
            envelope = self.try_poll()
        if envelope is None:
            yield None
            return
        with envelope.transaction(backoff):
            yield envelope

    def filter(self, **wanted: Any) -> Self:
        """The same queue, whose consumers get only messages with these values: `payload__region="eu"`.

        A value is compared as a whole with what the payload (JSON) has at the end of the path. Polling walks over all
        due messages that don't match, so it suits queues in which most do, or few wait. Closing either closes both.
        Raises InvalidQueue for a wrong name, or if payloads are not JSON.
        """
        view = copy.copy(self)
        view._conditions = (*self._conditions, *conditions(self.address.serializer, wanted))  # noqa: SLF001 - a copy
        return view

    # Claiming

    def _take(self, limit: int) -> list[Envelope[P]]:
        """What could be read of what was claimed; the rest is set aside, and the next ones tried."""
        while claims := self._claim(limit):
            if envelopes := self._open(claims):
                return envelopes
        return []

    def _claim(self, limit: int) -> list[Claimed]:
        if limit <= 0:
            return []
        try:
            return self.leases.claim(limit, self._conditions)
        except DataError:
            self._set_aside_unreadable()
            return self.leases.claim(limit, self._conditions)

    def _open(self, claims: Sequence[Claimed]) -> list[Envelope[P]]:
        envelopes: list[Envelope[P]] = []
        refused: dict[Claimed, Exception] = {}
        for claimed in claims:
            try:
                envelopes.append(self._envelope(claimed))
            except Error:
                with suppress(Error):  # then they come back when their leases end
                    self._release(claims)
                raise
            except Exception as reason:  # noqa: BLE001 - the serializer may be somebody else's code
                refused[claimed] = reason
        if refused:
            self.leases.set_aside(refused)
        return envelopes

    def _envelope(self, claimed: Claimed) -> Envelope[P]:
        if claimed.attempt > claimed.max_attempts:
            raise WorkerVanished(f"It was delivered {claimed.attempt - 1} times, as often as it may be.")
        content = self.address.read(claimed.payload, claimed.metadata)
        return Envelope(self.address, self.leases, claimed, content)

    def _release(self, claims: Sequence[Claimed]) -> None:
        self.leases.settle([End(GiveBack(claimed, charged=False)) for claimed in claims], time.monotonic())

    def _set_aside_unreadable(self) -> None:
        """The store could not look into a payload: find out which, as it would stop every filter for good."""
        store, lease = self.leases.store, self.leases.duration()
        for message in waiting(self.leases).iterator():
            try:
                self.address.read(message.payload, message.metadata)
            except ValueError as reason:
                if claimed := store.claim_unchanged(
                    message.id, message.generation, lease, consumer(), self.leases.now()
                ):
                    self.leases.set_aside({claimed: reason})

    # Waiting

    def _watch(self) -> Watch:
        return Watch(self.leases.store, self.address.queue)

    def _await(self, watch: Watch, give_up_at: float, given_up: threading.Event | None = None) -> Envelope[P] | None:
        if envelope := self.try_poll():
            return envelope
        while (left := give_up_at - time.monotonic()) > 0 and not (given_up and given_up.is_set()):
            watch.listen()
            looked_at = self._now()
            if envelope := self.try_poll():
                return envelope
            watch.wait(min(left, self._due_in(looked_at)))
        return None

    def _due_in(self, looked_at: datetime) -> float:
        """Seconds to sleep at most. What was due when a poll looked and was not claimed is locked, or doesn't match."""
        sights = self.leases.store.glance([Lane(self.address.queue, 0, looked_at)], self.leases.now())
        return max(SHORTEST_WAIT, min([self.patience(), *(sight.due_in for sight in sights)]))

    def _now(self) -> datetime:
        return self.leases.now() or self.leases.store.now()

    # Async: whoever is cancelled gives back, uncharged, what was claimed nevertheless

    async def atry_poll(self) -> Envelope[P] | None:
        return await _unless_cancelled(sync_to_async(self.try_poll)())

    async def atry_poll_many(self, limit: int) -> Batch[P]:
        return await _unless_cancelled(sync_to_async(self.try_poll_many)(limit))

    async def apoll(self, timeout: timedelta | None = None) -> Envelope[P] | None:  # noqa: ASYNC109 - as poll() has it
        """`poll`, which waits in a thread of its own."""
        if envelope := await self.atry_poll():
            return envelope
        given_up = threading.Event()
        thread = ThreadPoolExecutor(1, thread_name_prefix="delayedq-poll")
        polling = asyncio.get_running_loop().run_in_executor(thread, self._poll_apart, timeout, given_up)
        try:
            return await _unless_cancelled(polling, lambda: self._give_up(given_up))
        finally:
            thread.shutdown(wait=False)

    def _give_up(self, given_up: threading.Event) -> None:
        given_up.set()
        ring(self.leases.alias, self.address.queue)

    def _poll_apart(self, timeout: timedelta | None, given_up: threading.Event) -> Envelope[P] | None:
        try:
            with self._watch() as watch:
                return self._await(watch, _deadline(timeout), given_up)
        finally:
            connections[self.leases.alias].close()

    async def __aiter__(self) -> AsyncIterator[Envelope[P]]:
        """Wait for one message after the other, until the queue is closed."""
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
    return inf if timeout is None else time.monotonic() + timeout.total_seconds()
