"""Threads that hand the messages of a queue to a function: more while all of them work, fewer while it is empty."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, close_old_connections, connections

from delayedq.core.backoff import as_backoff
from delayedq.exceptions import InvalidQueue, QueueClosed
from delayedq.queue.leases import Acknowledgement, check_duration
from delayedq.queue.watch import ring
from delayedq.store.connecting import pool_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.core.backoff import Backoff
    from delayedq.queue.consumer import Consumer
    from delayedq.queue.envelope import Envelope

logger = logging.getLogger("delayedq")

#: For how long a thread that is not one of the fewest waits for a message before it ends.
PATIENCE = timedelta(seconds=10)
#: Seconds after which a signal is seen that another thread got.
SIGNALS = 1.0
#: After how long a message is due again whose handler has raised.
BACKOFF = timedelta(seconds=1)
#: Answers to a consumer that was not the last one to have the message.
LOST = {Acknowledgement.LEASE_LOST, Acknowledgement.BUSY}


class ConsumeTerms(NamedTuple):
    """See `DelayedQueue.consume`."""

    fewest: int
    most: int
    patience: timedelta
    backoff: Backoff | timedelta | None
    lease: timedelta | None


def terms(
    threads: object, patience: timedelta, backoff: Backoff | timedelta | None, lease: timedelta | None
) -> ConsumeTerms:
    """Raises InvalidQueue for what is no number of threads and no duration."""
    given = threads if isinstance(threads, tuple) else (threads, threads)
    if len(given) != 2 or any(type(one) is not int for one in given) or not 1 <= given[0] <= given[1]:  # noqa: PLR2004
        raise InvalidQueue(f"threads is a number of at least 1, or (fewest, most), not {threads!r}.")
    check_duration("patience", patience)
    if lease is not None:
        check_duration("lease", lease)
    if backoff is not None:
        as_backoff(backoff)
    return ConsumeTerms(*given, patience, backoff, lease)


class Consumers[P]:
    """The threads of one `consume()`. A thread starts when a message came and no other one waits for the next."""

    def __init__(self, queue: Consumer[P], handle: Callable[[Envelope[P]], object], agreed: ConsumeTerms) -> None:
        self._queue, self._handle, self._terms = queue, handle, agreed
        self._lock = threading.RLock()
        self._threads: set[threading.Thread] = set()
        self._consuming: set[threading.Thread] = set()  # those of them that take messages
        self._waiting = 0
        self._stopped = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Until the queue is closed. Raises what interrupts this thread or ends another, once what runs has ended."""
        self._check_pool()
        try:
            for _ in range(self._terms.fewest):
                self._start()
            self._join()
        except BaseException:
            self._stop()
            self._join()
            raise
        if self._error is not None:
            raise self._error

    def _check_pool(self) -> None:
        alias, most = self._queue.leases.alias, self._terms.most
        size = pool_size(alias)
        if size is not None and size < most:
            logger.warning(
                "%r is consumed by up to %s threads, each with a connection of its own, and the pool of %r has %s: the "
                "others wait for one, and fail. Set max_size in DATABASES[%r]['OPTIONS']['pool'] to at least %s.",
                self._queue, most, alias, size, alias, most + 1,
            )  # fmt: skip

    def _start(self) -> None:
        """One more, unless there are as many as there may be."""
        with self._lock:
            if len(self._consuming) >= self._terms.most or self._stopped.is_set():
                return
            # A second interrupt ends the process, whatever they do.
            thread = threading.Thread(target=self._consume, name="delayedq-consumer", daemon=True)
            thread.start()
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}
            self._consuming.add(thread)
            self._waiting += 1

    def _join(self) -> None:
        """Until they have ended: one that takes no more messages still has connections to close."""
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            alive[0].join(SIGNALS)

    def _stop(self) -> None:
        self._stopped.set()
        ring(self._queue.leases.alias, self._queue.address.queue)

    def _consume(self) -> None:
        """The body of a thread, which counts as waiting when it begins."""
        try:
            while not self._stopped.is_set():
                try:
                    self._poll_and_give()
                except Error:
                    logger.exception("The database failed: %r is polled again.", self._queue)
                    connections.close_all()
                    self._stopped.wait(self._queue.patience())
                else:
                    return
        except QueueClosed:
            self._stop()
        except BaseException as error:  # noqa: BLE001 - it is raised where `consume` was called
            self._error = self._error or error
            self._stop()
        finally:
            connections.close_all()
            self._leave()

    def _poll_and_give(self) -> None:
        """Until there is nothing to do for one more, or for all. Raises QueueClosed, django.db.Error."""
        patience = self._terms.patience.total_seconds()
        with self._queue._watch() as watch:  # noqa: SLF001 - the other half of the queue
            while not self._stopped.is_set():
                give_up_at = time.monotonic() + patience
                envelope = self._queue._await(watch, give_up_at, self._terms.lease, self._stopped)  # noqa: SLF001
                if envelope is not None:
                    self._work(envelope)
                elif self._may_end():
                    return

    def _work(self, envelope: Envelope[P]) -> None:
        with self._lock:
            self._waiting -= 1
            is_last = not self._waiting
        try:
            if is_last:
                self._start_if_possible()
            self._give(envelope)
        finally:
            with self._lock:
                self._waiting += 1

    def _start_if_possible(self) -> None:
        try:
            self._start()
        except RuntimeError as error:  # the system has no thread left
            logger.warning("%r gets no more threads: %s", self._queue, error)

    def _give(self, envelope: Envelope[P]) -> None:
        envelope.outlive_queue()
        try:
            self._handle(envelope)
        except Exception as error:
            logger.exception("The consumer of %r failed with message %s.", self._queue, envelope.message_id)
            self._put_back(envelope, error)
            close_old_connections()  # one that is broken would fail each message from now on
        except BaseException:
            with suppress(Error):
                envelope.release()
            raise
        else:
            if envelope.answer is None and (answer := envelope.acknowledge()) in LOST:
                logger.warning("The end of message %s of %r was refused: %s.", envelope.message_id, self._queue, answer)

    def _put_back(self, envelope: Envelope[P], error: Exception) -> None:
        with suppress(Error, QueueClosed):  # it comes back when its lease ends
            try:
                envelope.put_back(error, self._terms.backoff)
            except (Error, QueueClosed):
                raise
            except Exception:
                logger.exception("The backoff of %r failed.", self._queue)
                envelope.put_back(error, BACKOFF)

    def _may_end(self) -> bool:
        with self._lock:
            may = len(self._consuming) > self._terms.fewest
            if may:
                self._leave()
            return may

    def _leave(self) -> None:
        """The calling thread takes no more messages."""
        with self._lock:
            if (thread := threading.current_thread()) in self._consuming:
                self._consuming.remove(thread)
                self._waiting -= 1
