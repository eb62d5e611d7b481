"""Where tasks run: threads for sync ones, one event loop for async ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from delayedq.core.lifecycle import NotStarted, Raised
from delayedq.worker.deadlines import Deadlines
from delayedq.worker.executor import Ended, aexecute, execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.worker.attempt import Attempt

#: Ended attempts in one trip to the database.
FLUSH = 512
#: An ended attempt waits so many seconds for others to share the trip; or, where trips take long, as long as keeps them
#: to about a tenth of the time.
FLUSH_AFTER, LONGEST_FLUSH_AFTER = 0.005, 0.1
TRIP_REST = 10
#: A thread that was idle for so many seconds closes the connections that CONN_MAX_AGE says are too old. A busy one
#: keeps them: with the default of 0 it would connect anew for each task.
KEEP_CONNECTIONS = 5.0
#: The one that all async tasks share is checked so often.
CHECK_CONNECTIONS = 1.0
#: Async tasks that may be in flight at once in one process.
ASYNC_LIMIT = 4096


class Pool:
    """Takes attempts, and hands back how they ended. `wake` is called when the loop has reason to look in.

    So many ended attempts (`flush`) are worth a trip to the database.
    """

    def __init__(self, threads: int, wake: Callable[[], None], flush: int = FLUSH) -> None:
        self._wake = wake
        self._flush = flush
        self._waiting: SimpleQueue[Attempt | None] = SimpleQueue()
        self._ended: deque[Ended] = deque()
        self._ended_in_loop: deque[Ended] = deque()
        self._threads = [
            threading.Thread(target=self._work, name=f"delayedq-{number}", daemon=True) for number in range(threads)
        ]
        self._coroutines: Coroutines | None = None
        self._deadlines = Deadlines(wake)
        self.size = threads
        #: Attempts that were submitted and not yet taken back, for threads and for the event loop.
        self.in_threads = 0
        self.in_loop = 0
        self._flush_after = FLUSH_AFTER
        for thread in self._threads:
            thread.start()

    # The loop's side

    def submit(self, attempt: Attempt) -> None:
        if attempt.threaded:
            self.in_threads += 1
            self._waiting.put(attempt)
            return
        if self._coroutines is None:
            self._coroutines = Coroutines(partial(self._end, self._ended_in_loop))
        self.in_loop += 1
        self._coroutines.submit(attempt)

    def waiting(self) -> bool:
        """Is there anything that no thread has started yet?"""
        return not self._waiting.empty()

    def idle(self) -> bool:
        """Nothing runs or waits for a thread; what ended may not have been taken yet."""
        return self.in_threads + self.in_loop == len(self._ended) + len(self._ended_in_loop)

    def occupying(self) -> int:
        """How many attempts wait for a thread, or have one."""
        return self.in_threads - len(self._ended)

    def worth_taking(self) -> float | None:
        """Seconds until what ended should be taken: at once if it is much, or all there is; None if nothing ended."""
        first = [ended[0].finished for ended in (self._ended, self._ended_in_loop) if ended]
        if not first:
            return None
        if len(self._ended) + len(self._ended_in_loop) >= self._flush or self.idle():
            return 0.0
        return max(0.0, min(first) + self._flush_after - time.monotonic())

    def trip_took(self, seconds: float) -> None:
        """The last trip to the database."""
        self._flush_after = min(LONGEST_FLUSH_AFTER, max(FLUSH_AFTER, TRIP_REST * seconds))

    def take_ended(self) -> list[Ended]:
        taken = []
        while self._ended:
            taken.append(self._ended.popleft())
            self.in_threads -= 1
        while self._ended_in_loop:
            taken.append(self._ended_in_loop.popleft())
            self.in_loop -= 1
        return taken

    def take_back(self) -> list[Attempt]:
        """What no thread has started yet."""
        taken: list[Attempt] = []
        with suppress(Empty):
            while attempt := self._waiting.get_nowait():
                taken.append(attempt)
        self.in_threads -= len(taken)
        return taken

    def enforce_timeouts(self) -> float | None:
        """Interrupt sync tasks that have run out of time; returns the seconds until the next one does."""
        return self._deadlines.enforce()

    def stop(self) -> None:
        """End the threads; every attempt must have ended."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._deadlines.close()
        if self._coroutines is not None:
            self._coroutines.stop()

    # The threads' side

    def _work(self) -> None:
        while (attempt := self._next()) is not None:
            self._end(self._ended, self._run(attempt))
        connections.close_all()

    def _run(self, attempt: Attempt) -> Ended:
        if not attempt.start():
            return Ended(attempt, NotStarted(), None, time.monotonic())
        try:
            drop_broken_connections()
        except Exception as error:  # noqa: BLE001  whatever happens, the attempt must end
            return _failed(attempt, error)
        if attempt.task.exactly_once:
            return self._deadlines.execute_jointly(attempt)
        return execute(attempt) if attempt.task.timeout is None else self._deadlines.execute(attempt)

    def _next(self) -> Attempt | None:
        try:
            return self._waiting.get(timeout=KEEP_CONNECTIONS)
        except Empty:
            close_old_connections()
            return self._waiting.get()

    def _end(self, those: deque[Ended], ended: Ended) -> None:
        """The loop is woken for the first one, whoever of several threads that is, and when there is no more to do."""
        is_first = not those
        those.append(ended)
        if is_first or len(those) in {1, self._flush} or self._flush == 1 or self._waiting.empty():
            self._wake()


class _Opened(threading.local):
    """The connections that the current thread has opened: to ask Django for them costs as much as a small task."""

    def __init__(self) -> None:
        self.connections: list[BaseDatabaseWrapper] = []


_opened = _Opened()


@receiver(connection_created)
def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection not in _opened.connections and connection in connections.all(initialized_only=True):
        _opened.connections.append(connection)


def drop_broken_connections() -> None:
    """What one task left broken, or in a transaction, must not meet the next one on this thread."""
    for connection in [*_opened.connections]:
        if connection.in_atomic_block or not connection.autocommit:
            _drop(connection)
        elif connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _drop(connection: BaseDatabaseWrapper) -> None:
    connection.close()
    _opened.connections.remove(connection)
    if connection in connections.all(initialized_only=True):
        del connections[connection.alias]


def _failed(attempt: Attempt, error: Exception) -> Ended:
    moment = time.monotonic()
    return Ended(attempt, Raised(), moment, moment, error)


class Coroutines:
    """An event loop in a thread of its own."""

    def __init__(self, end: Callable[[Ended], None]) -> None:
        self._end = end
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked = 0.0
        self._thread = threading.Thread(target=self._run, name="delayedq-async", daemon=True)
        self._thread.start()

    def submit(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self._begin, attempt)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            runner.run(sync_to_async(connections.close_all)())

    def _begin(self, attempt: Attempt) -> None:
        task = self._loop.create_task(self._work(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, attempt: Attempt) -> None:
        # The ORM's calls of all async tasks share one thread, and so one connection.
        try:
            if time.monotonic() - self._checked > CHECK_CONNECTIONS:
                self._checked = time.monotonic()
                await sync_to_async(_check_connections)()
        except Exception as error:  # noqa: BLE001  whatever happens, the attempt must end
            self._end(_failed(attempt, error))
        else:
            self._end(await aexecute(attempt))


def _check_connections() -> None:
    drop_broken_connections()
    close_old_connections()
