"""Where tasks run: threads for sync ones, one event loop for async ones."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from contextvars import Context
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import Error, InterfaceError, OperationalError, close_old_connections, connections

from delayedq.core.lifecycle import NotStarted, Raised
from delayedq.exceptions import DeadlineExceeded, TaskTimeout
from delayedq.sql.priority import is_limited
from delayedq.worker.executor import aexecute, execute, not_begun
from delayedq.worker.reporting import ProgressWriter
from delayedq.worker.sessions import (
    check,
    has_opened,
    is_open,
    may_be_dead,
    observe,
    observed,
    opened,
    restore,
    share,
)
from delayedq.worker.transitions import AttemptResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.worker.attempt import Attempt
from delayedq.worker.deadlines import Deadlines, give_up_waits

logger = logging.getLogger("delayedq")

# Pool


#: Ended attempts in one round trip to the database.
FLUSH = 512

#: An ended attempt waits at most 5 ms for others to share the round trip. If the last round trip took more than 0.5 ms,
#: it waits ten times that (about a tenth of the time is spent in round trips), but at most 0.1 s.
FLUSH_AFTER, LONGEST_FLUSH_AFTER = 0.005, 0.1

ROUND_TRIP_REST = 10

#: A thread that was idle for 5 s closes the connections that are older than CONN_MAX_AGE. A busy one keeps them: with
#: the default of 0 it would open a connection for each task.
KEEP_CONNECTIONS = 5.0

#: Seconds for which an attempt without a connection is remembered: LISTEN then leaves its own to others.
LACKED = 30.0

#: Seconds between two checks of the connection that all async tasks share.
CHECK_CONNECTIONS = 1.0

#: Seconds between two looks whether async tasks have lost their leases.
CHECK_LEASES = 1.0

#: Async tasks that may be in flight at once in one process, and those that begin one right after the other.
ASYNC_LIMIT, BEGUN_AT_ONCE = 4096, 64


class Pool:
    """Takes attempts, and hands back their results. `wake` is called when the loop has a reason to take them.

    `flush`: this many results are worth a round trip to the database at once. `write` is entered around the writes of
    progress; what `wait` gives, around what threads ask the database beside a task. `patience`: see `Deadlines`.
    """

    def __init__(
        self,
        threads: int,
        wake: Callable[[], None],
        flush: int = FLUSH,
        write: AbstractContextManager[None] | None = None,
        wait: Callable[[str], AbstractContextManager[Any]] | None = None,
        patience: float = inf,
    ) -> None:
        self._wake = wake
        self._wait: Callable[[str], AbstractContextManager[Any]] = wait or nullcontext
        self._flush = flush
        self._waiting: SimpleQueue[Attempt | None] = SimpleQueue()
        self._ended: deque[AttemptResult] = deque()
        self._ended_in_event_loop: deque[AttemptResult] = deque()
        self._threads = [
            threading.Thread(target=self._work, name=f"delayedq-{number}", daemon=True) for number in range(threads)
        ]
        self._coroutines: Coroutines | None = None
        self._deadlines, self._patience = Deadlines(wake, patience), patience
        self._progress = ProgressWriter(write)
        self._report = self._progress.report
        self.size = threads
        #: Attempts that were submitted and not yet taken back, for threads and for the event loop.
        self.in_threads = 0
        self.in_event_loop = 0
        self._flush_after = FLUSH_AFTER
        self._lacked_at = -LACKED
        #: What was found to be lost.
        self.lost: list[Attempt] = []
        for thread in self._threads:
            thread.start()

    # The loop's side

    def submit(self, attempt: Attempt) -> None:
        """Run it as soon as a thread is free; async ones at once in the event loop."""
        attempt.reporter = self._report
        if attempt.threaded:
            self.in_threads += 1
            self._waiting.put(attempt)
            return
        if self._coroutines is None:
            end = partial(self._end, self._ended_in_event_loop)
            wait = self._wait("what is asked beside async tasks")
            self._coroutines = Coroutines(end, self._note_lack, self._patience, wait)
        self.in_event_loop += 1
        self._coroutines.submit(attempt)

    def lacks_connection(self, since: float) -> bool:
        """Whether an attempt got no connection to a database since this moment (monotonic), at most LACKED ago."""
        return self._lacked_at > max(since, time.monotonic() - LACKED)

    def waiting(self) -> bool:
        """True if there is an attempt that no thread has started yet."""
        return not self._waiting.empty()

    def idle(self) -> bool:
        """True if nothing runs or waits for a thread; there may be results that were not taken yet."""
        return self.in_threads + self.in_event_loop == len(self._ended) + len(self._ended_in_event_loop)

    def occupying(self) -> int:
        """How many attempts wait for a thread, or have one."""
        return self.in_threads - len(self._ended)

    def should_take(self) -> bool:
        """True if the results should be taken now."""
        return self.take_in() == 0.0

    def take_in(self) -> float | None:
        """Seconds until the results should be taken: 0 if a batch is full, nothing else is running, or a thread is free
        for a message that waits for one of these ends in its channel; None if nothing has ended.
        """
        first = [ended[0].finished for ended in (self._ended, self._ended_in_event_loop) if ended]
        if not first:
            return None
        if len(self._ended) + len(self._ended_in_event_loop) >= self._flush or self.idle():
            return 0.0
        if self._waiting.empty() and self._frees_a_place():
            return 0.0
        return max(0.0, min(first) + self._flush_after - time.monotonic())

    def _frees_a_place(self) -> bool:
        """Whether a message with a channel is the first or the last that has ended."""
        ended = [those[end] for those in (self._ended, self._ended_in_event_loop) if those for end in (0, -1)]
        return any(is_limited(one.attempt.claimed.priority) for one in ended)

    def round_trip_took(self, seconds: float) -> None:
        """Learn how long the last round trip to the database took."""
        self._flush_after = min(LONGEST_FLUSH_AFTER, max(FLUSH_AFTER, ROUND_TRIP_REST * seconds))

    def take_ended(self) -> list[AttemptResult]:
        """The results since the last call."""
        taken = []
        while self._ended:
            taken.append(self._ended.popleft())
            self.in_threads -= 1
        while self._ended_in_event_loop:
            taken.append(self._ended_in_event_loop.popleft())
            self.in_event_loop -= 1
        return taken

    def take_back(self) -> list[Attempt]:
        """The attempts that no thread has started yet; they will not be started."""
        taken: list[Attempt] = []
        with suppress(Empty):
            while attempt := self._waiting.get_nowait():
                taken.append(attempt)
        self.in_threads -= len(taken)
        return taken

    def enforce_timeouts(self) -> float | None:
        """Interrupt sync tasks that have run out of time; returns the seconds until the next one does."""
        return self._deadlines.enforce()

    def find_lost(self, after: float) -> list[Attempt]:
        """The attempts that run on `after` seconds after their timeout: their threads can't be interrupted."""
        self.lost = self._deadlines.overdue(after)
        return self.lost

    def stop(self) -> None:
        """End the threads; every attempt must have ended."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._deadlines.close()
        if self._coroutines is not None:
            self._coroutines.stop()
        self._progress.stop()

    # The threads' side

    def _work(self) -> None:
        observe()
        wait = self._wait("what is asked beside a task")
        with wait:
            pass  # so that it knows the connection which a task may open
        while (attempt := self._next()) is not None:
            # What it sets in its context (its language, time zone, decimals, any ContextVar) ends with it.
            try:
                result = Context().run(self._run, attempt, wait)
            except BaseException as error:  # noqa: BLE001  of what judges an error, as without memory: the thread goes on
                result = _failed(attempt, error)
            if isinstance(result.error, OperationalError):
                self._note_lack(connections.all(initialized_only=True))
            if has_opened():
                self._restore(attempt, result, wait)
            self._end(self._ended, result)
        connections.close_all()

    def _restore(self, attempt: Attempt, result: AttemptResult, wait: AbstractContextManager[Any]) -> None:
        try:
            with wait:
                restore(failed=isinstance(result.outcome, Raised), task=attempt.kind)
            if not has_opened():
                with wait:
                    pass  # the next task has another one
        except Exception:
            logger.exception("The connections could not be restored after %r.", attempt)
            connections.close_all()

    def _run(self, attempt: Attempt, wait: AbstractContextManager[Any]) -> AttemptResult:
        if has_opened():
            try:
                with wait:
                    check()
            except Error as error:
                return not_begun(attempt, error)
        attempt.asking = wait
        if not attempt.start():
            return _not_started(attempt)
        if attempt.task.exactly_once:
            return self._deadlines.execute_exactly_once(attempt)
        if attempt.is_plain or not attempt.may_be_interrupted:
            return execute(attempt)
        return self._deadlines.execute(attempt)

    def _note_lack(self, opened: Iterable[BaseDatabaseWrapper]) -> None:
        """After an error of the database: none of these connections, of the thread of the attempt, is open."""
        if not any(map(is_open, opened)):
            self._lacked_at = time.monotonic()

    def _next(self) -> Attempt | None:
        try:
            return self._waiting.get(timeout=KEEP_CONNECTIONS)
        except Empty:
            close_old_connections()
            return self._waiting.get()

    def _end(self, those: deque[AttemptResult], ended: AttemptResult) -> None:
        """Wake the loop for the first result, for a full batch, and when no attempt waits for a thread any more, or no
        async one runs.
        """
        is_first = not those
        those.append(ended)
        is_last = self._waiting.empty() if those is self._ended else self.idle()
        if is_first or len(those) in {1, self._flush} or self._flush == 1 or is_last:
            self._wake()


def _not_started(attempt: Attempt) -> AttemptResult:
    """Its lease was lost while it waited."""
    return AttemptResult(attempt, NotStarted(), None, time.monotonic())


def _failed(attempt: Attempt, error: BaseException) -> AttemptResult:
    if isinstance(error, InterfaceError | OperationalError):
        return not_begun(attempt, error)
    moment = time.monotonic()
    return AttemptResult(attempt, Raised(), moment, moment, error)


class Coroutines:
    """Runs async attempts: an event loop in a thread of its own. What loses its lease is cancelled, once.

    The ORM's calls of all async tasks share one thread. If that is not free `patience` seconds after the time of a task
    was over, or after one was cancelled, it loses its connections.
    """

    def __init__(
        self,
        end: Callable[[AttemptResult], None],
        note_lack: Callable[[Iterable[BaseDatabaseWrapper]], None] = lambda _: None,
        patience: float = inf,
        wait: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._patience = patience
        #: Around what the one thread asks that no task has asked for.
        self._wait = wait or nullcontext()
        self._end = end
        self._note_lack = note_lack
        self._loop = asyncio.new_event_loop()
        #: What is to begin, and whether the event loop knows of it.
        self._given: deque[Attempt] = deque()
        self._is_called = False
        self._tasks: dict[asyncio.Task[None], Attempt] = {}
        self._is_watching = False
        self._is_stopping = False
        #: The tasks that were named as those which may have stopped the loop.
        self._suspected: set[str] = set()
        self._checked = 0.0
        #: The thread in which async tasks ask the ORM, and its connections.
        self._asking = 0
        self._freeing: set[asyncio.Task[None]] = set()
        self._opened: Mapping[BaseDatabaseWrapper, object] = {}
        self._thread = threading.Thread(target=self._run, name="delayedq-async", daemon=True)
        self._thread.start()
        _coroutines.add(self)

    def submit(self, attempt: Attempt) -> None:
        """Wake the event loop, which takes a system call, once for all that it has not begun."""
        self._given.append(attempt)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._begin_given)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop_loop)
        self._thread.join()

    def _stop_loop(self) -> None:
        """In the loop: what stops it after a task has done so would meet the last thing that it does."""
        self._is_stopping = True
        self._loop.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._is_stopping:
                self._serve(runner.get_loop())
            runner.run(sync_to_async(connections.close_all)())

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until somebody stops it. What asyncio lets end it, in a task or callback beside those of messages, has
        nothing to do with the others.
        """
        what = "called loop.stop() on"
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            what = f"raised {type(error).__name__}, outside of its own coroutine, in"
        if not self._is_stopping:
            self._tell_stopped(what)

    def _tell_stopped(self, what: str) -> None:
        """Once for the same tasks: one that stops it again and again would fill the log."""
        kinds = {attempt.kind for attempt in self._tasks.values()}
        if not kinds <= self._suspected:
            self._suspected |= kinds
            logger.warning(
                "A task has %s the event loop of all async tasks, which goes on. Running: %s.",
                what, ", ".join(sorted(kinds)), extra={"pid": os.getpid()},
            )  # fmt: skip

    def leave_clone(self) -> None:
        """In a process that was forked just now: it ends when the task that forked gives way to others, in the event
        loop or in the thread of the ORM. They go on in its parent.
        """
        thread = threading.get_ident()
        if thread == self._thread.ident and hasattr(self._loop, "_ready"):  # that of a library may have none
            self._loop._ready.appendleft(asyncio.Handle(_end_clone, (), self._loop))  # noqa: SLF001
        elif thread == self._asking:
            SyncToAsync.single_thread_executor.submit(_end_clone)

    def _begin_given(self) -> None:
        """Up to BEGUN_AT_ONCE; then others of the loop have their turn."""
        self._is_called = False  # before the last look: what comes after it calls again
        for _ in range(BEGUN_AT_ONCE):
            if not self._given:
                return
            # It runs to its first `await` here; many end without one.
            asyncio.Task(self._work(self._given.popleft()), loop=self._loop, context=Context(), eager_start=True)
        self._loop.call_soon(self._begin_given)

    def _watch_over(self, task: asyncio.Task[None], attempt: Attempt) -> None:
        self._tasks[task] = attempt
        task.add_done_callback(self._forget)
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_later(CHECK_LEASES, self._watch)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """In another turn of the loop: one that has stopped it is named first."""
        del self._tasks[task]

    def _watch(self) -> None:
        """Cancel what has lost its lease; look again while anything runs."""
        for task, attempt in self._tasks.items():
            if attempt.lease_lost and not task.cancelling():
                logger.warning("%r is cancelled: its lease was lost.", attempt, extra={"message_id": attempt.id})
                task.cancel()
        self._is_watching = bool(self._tasks)
        if self._is_watching:
            self._loop.call_later(CHECK_LEASES, self._watch)

    async def _work(self, attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._watch_over(task, attempt)
        self._end(await self._attempt(attempt))

    async def _attempt(self, attempt: Attempt) -> AttemptResult:
        try:
            if time.monotonic() - self._checked > CHECK_CONNECTIONS or may_be_dead(self._opened):
                self._checked = time.monotonic()
                self._asking, self._opened = await sync_to_async(self._check_connections)(len(self._tasks))
            attempt.asking = self._wait
            result = await self._execute(attempt) if attempt.start() else _not_started(attempt)
        except BaseException as error:  # noqa: BLE001  whatever happens, the attempt must end
            result = _failed(attempt, error)
        if isinstance(result.error, OperationalError):
            self._note_lack(self._opened)
        return result

    def _check_connections(self, running: int) -> tuple[int, Mapping[BaseDatabaseWrapper, object]]:
        with self._wait:
            return _check_connections(running)

    async def _execute(self, attempt: Attempt) -> AttemptResult:
        result = await aexecute(attempt)
        if isinstance(result.error, TaskTimeout | DeadlineExceeded | asyncio.CancelledError):
            freeing = self._loop.create_task(self._free_thread(attempt))
            self._freeing.add(freeing)
            freeing.add_done_callback(self._freeing.discard)
        return result

    async def _free_thread(self, attempt: Attempt) -> None:
        """A call of the ORM goes on when its task has been cancelled, and those of all other tasks come after it."""
        done, _ = await asyncio.wait([self._loop.create_task(sync_to_async(_pass)())], timeout=self._patience)
        if not done:
            give_up_waits(attempt, self._asking, self._patience)


#: Those of this process.
_coroutines: WeakSet[Coroutines] = WeakSet()


def _leave_clones() -> None:
    for one in [*_coroutines]:
        one.leave_clone()


def _end_clone() -> NoReturn:
    logger.error(
        "An async task has forked its process, and the child came back to the event loop; the child ends.",
        extra={"pid": os.getpid()},
    )
    os._exit(1)


os.register_at_fork(after_in_child=_leave_clones)


def _pass() -> None:
    """Runs when the thread is free."""


def _check_connections(running: int) -> tuple[int, Mapping[BaseDatabaseWrapper, object]]:
    """The calling thread, and its connections.

    Beside others that run, a session that they may need is left as it is.
    """
    if not observed():
        observe()
    restore(shared=running > 1)
    share()
    check()
    if running <= 1:
        close_old_connections()
    return threading.get_ident(), opened()
