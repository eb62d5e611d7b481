"""The parent of all worker processes: starts them, replaces them, stops them. It runs no task and opens no database."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection as waiting
from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.compat import TASKS_LOGGER
from delayedq.core.backoff import Exponential
from delayedq.signals import leave_failures_to_us
from delayedq.store import serve, served_store
from delayedq.store.wakeup import WakeUpPipe
from delayedq.worker.lease_keeper import LeaseKeeper, WorkerExit
from delayedq.worker.logs import is_full, never_block
from delayedq.worker.loop import Ending, Loop
from delayedq.worker.registration import worker_name
from delayedq.worker.shared_leases import CAPACITY, SharedLeases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from delayedq.worker.loop import Options

logger = logging.getLogger("delayedq")

#: A process that dies within 10 s of its start is replaced after a pause that doubles each time.
SHORT_LIFE = 10.0
PAUSES = Exponential(initial=timedelta(seconds=0.5), factor=2, maximum=timedelta(seconds=10))
#: Seconds after which a thread must yield the GIL: the loop and its poller get their turn beside busy tasks.
SWITCH_INTERVAL = 0.001
#: Seconds that a process has to end after the shutdown timeout, and the lease keeper after the last worker.
LAST_MOMENTS, KEEPER_TIMEOUT = 2.0, 10.0
#: Shared leases for each process: those of a dead one are released while the next one runs.
BUFFERS = 2

_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_fork = multiprocessing.get_context("fork")


class Supervisor:
    """Starts fleets, one for each database, and stops them together. Needs fork, so it runs on POSIX systems only.

    No fleet waits for another one: a database that is away stops only its own.
    """

    def __init__(self, fleets: Sequence[Fleet], shutdown_timeout: timedelta) -> None:
        self._fleets = fleets
        self._shutdown_timeout = shutdown_timeout
        self._stop_by: float | None = None
        self._pipe = WakeUpPipe()

    def run(self) -> int:
        """Supervise until all workers are done; returns the exit code of the command."""
        connections.close_all()  # the children must not share what was opened before
        never_block()
        for fleet in self._fleets:
            fleet.start_keeper()
        signal.set_wakeup_fd(self._pipe.write_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        while any(fleet.is_needed for fleet in self._fleets):
            for fleet in self._fleets:
                fleet.start_due()
            self._wait()
            for fleet in self._fleets:
                fleet.reap()
            self._kill_if_late()
        for fleet in self._fleets:
            fleet.dismiss_keeper()
        deadline = time.monotonic() + KEEPER_TIMEOUT
        for fleet in self._fleets:
            fleet.await_keeper(deadline)
        return 0

    def _wait(self) -> None:
        """Sleep until a child ends, a keeper answers, a signal comes, or a restart is due."""
        watched = [self._pipe.fileno(), *(one for fleet in self._fleets for one in fleet.watched())]
        ready = waiting.wait(watched, timeout=1.0)
        if self._pipe.fileno() in ready:
            self._pipe.clear()
        for fleet in self._fleets:
            fleet.attend_keeper(ready)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_by is not None:  # the second signal
            self._signal(signal.SIGKILL)
            os._exit(128 + number)
        self._stop_by = time.monotonic() + self._shutdown_timeout.total_seconds() + LAST_MOMENTS
        for fleet in self._fleets:
            fleet.stop()

    def _kill_if_late(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for fleet in self._fleets:
            fleet.signal(number)


class Fleet:
    """The `processes` workers of one database, and their lease keeper."""

    def __init__(self, alias: str, options: Options, processes: int) -> None:
        self._alias = alias
        self._options = options
        self._processes = processes
        self._all_leases = [SharedLeases(CAPACITY + options.threads) for _ in range(BUFFERS * processes)]
        self._free = deque(range(BUFFERS * processes))
        #: What the keeper was asked to release and has not answered yet, by the number of the shared leases.
        self._unreleased: dict[int, WorkerExit] = {}
        self._children = [Child(index, alias, self._all_leases, self._free, options) for index in range(processes)]
        self._keeper_at = 0.0
        self._keeper_deaths = 0

    @property
    def is_needed(self) -> bool:
        return any(child.needed for child in self._children)

    def start_due(self) -> None:
        """Start the workers that are due."""
        for child in self._children:
            child.start_if_due()

    # The lease keeper

    def start_keeper(self) -> None:
        """Fork it."""
        self._keeper_pipe, far_end = _fork.Pipe()
        for leases in self._all_leases:
            leases.let_claim_expired(0)  # until the keeper has renewed

        def keep() -> None:
            self._keeper_pipe.close()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it ends when the supervisor says so, or all workers have ended
            serve(self._alias)
            LeaseKeeper(served_store(), self._all_leases, self._options, far_end, self._processes).run()
            _leave(0)

        self._keeper = _fork.Process(target=keep, name="delayedq-lease-keeper")
        with signals_held_back():
            self._keeper.start()
        far_end.close()

    def _replace_keeper(self) -> None:
        self._keeper_deaths += 1
        self._keeper_at = time.monotonic() + PAUSES(self._keeper_deaths).total_seconds()
        logger.error(
            "The lease keeper (pid %s) died (%s); another one starts.",
            self._keeper.pid, _reason(self._keeper.exitcode or 0), extra={"pid": self._keeper.pid},
        )  # fmt: skip
        self._keeper_pipe.close()
        self.start_keeper()
        for worker_exit in self._unreleased.values():
            self._tell_keeper(worker_exit)

    def _tell_keeper(self, worker_exit: WorkerExit | None) -> None:
        with suppress(OSError):  # it has died just now; the next one is told
            self._keeper_pipe.send(worker_exit)

    def _keeper_answered(self) -> None:
        with suppress(EOFError, OSError):
            while self._keeper_pipe.poll():
                released: WorkerExit = self._keeper_pipe.recv()
                if self._unreleased.pop(released.worker, None):
                    self._free.append(released.worker)

    def dismiss_keeper(self) -> None:
        """The pipe alone would not tell it to end: a child that a task forked may have inherited this end of it."""
        self._tell_keeper(None)

    def await_keeper(self, deadline: float) -> None:
        """Wait until it has ended, at most until this moment of `time.monotonic()`."""
        self._keeper.join(max(0.0, deadline - time.monotonic()))
        if self._keeper.is_alive():
            logger.warning("The lease keeper waits for the database; what was not released is left to its lease.")
            self._keeper.kill()
            self._keeper.join()

    # Waiting and reaping

    def watched(self) -> Iterator[Any]:
        """What a supervisor waits for."""
        if self._keeper.is_alive():
            yield from (self._keeper_pipe, self._keeper.sentinel)
        yield from (child.process.sentinel for child in self._children if child.process)

    def attend_keeper(self, ready: Sequence[object]) -> None:
        """Hear its answer, if it is `ready`, and replace a keeper that has died."""
        if self._keeper_pipe in ready:
            self._keeper_answered()
        if not self._keeper.is_alive() and time.monotonic() >= self._keeper_at:
            self._replace_keeper()

    def reap(self) -> None:
        """Have what ended workers held be released."""
        for child in self._children:
            if worker_exit := child.reap():
                self._unreleased[worker_exit.worker] = worker_exit
                self._tell_keeper(worker_exit)

    # Stopping

    def stop(self) -> None:
        for child in self._children:
            child.stop()

    def signal(self, number: int) -> None:
        """Send a signal to each worker process."""
        for child in self._children:
            child.signal(number)


class Child:
    """One worker process after another. Each takes shared leases that are `free`."""

    def __init__(
        self, index: int, alias: str, all_leases: list[SharedLeases], free: deque[int], options: Options
    ) -> None:
        self._index = index
        self._alias = alias
        self._all_leases = all_leases
        self._free = free
        self._number = 0
        self._options = options
        self._started = 0.0
        self._start_at = 0.0
        self._short_lives = 0
        self._stopped = False
        self.process: ForkProcess | None = None
        self.needed = True

    def start_if_due(self) -> None:
        """Start a process if there is none, shared leases are free, and the pause is over."""
        with signals_held_back():  # a stop comes before the start, or reaches the child; never in between
            if self.process is None and self._free and self.needed and time.monotonic() >= self._start_at:
                self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._number = self._free.popleft()
        self.process = _fork.Process(
            target=work,
            args=(self._alias, self._options, self._all_leases[self._number], os.getpid()),
            name=f"delayedq-worker-{self._index + 1}",
        )
        self.process.start()

    def stop(self) -> None:
        """Tell the process to stop, and start no other."""
        self._stopped = True
        self.signal(signal.SIGTERM)
        if self.process is None:
            self.needed = False

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None and self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def reap(self) -> WorkerExit | None:
        """If the process has ended, decide whether to start another; returns what the keeper shall release."""
        if self.process is None or self.process.is_alive():
            return None
        code, pid = self.process.exitcode or 0, self.process.pid
        self.process.join()
        self.process = None
        self._judge(code, pid)
        self.needed = not self._stopped
        reason = f"Worker process {pid} was replaced: its thread was lost." if code == Ending.LOST_THREADS else ""
        return WorkerExit(self._number, all_of_it=code == Ending.GAVE_UP, reason=reason)

    def _judge(self, code: int, pid: int | None) -> None:
        if code == Ending.DONE or self._stopped:
            self._stopped = True
            return
        if code in {Ending.RECYCLE, Ending.LOST_THREADS}:
            return
        short = time.monotonic() - self._started < SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        pause = PAUSES(self._short_lives).total_seconds() if short else 0.0
        self._start_at = time.monotonic() + pause
        logger.error(
            "Worker process %s (pid %s) died (%s); another starts in %.1f s.",
            self._index + 1, pid, _reason(code), pause, extra={"pid": pid},
        )  # fmt: skip


@contextmanager
def signals_held_back() -> Iterator[None]:
    """For a fork: the child must not run the supervisor's signal handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def work(alias: str, options: Options, leases: SharedLeases, parent: int) -> None:
    """The body of a worker process."""
    serve(alias)
    signal.set_wakeup_fd(-1)
    logging.getLogger(TASKS_LOGGER).addFilter(leave_failures_to_us)
    sys.setswitchinterval(SWITCH_INTERVAL)
    loop = Loop(served_store(), options, worker_name(os.getpid(), options.name), leases)
    leases.register(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        code: int = loop.run(supervisor=parent)
    except BaseException:
        logger.exception("Worker process %s ends with an error.", os.getpid(), extra={"pid": os.getpid()})
        code = 1
    _leave(code)


def _leave(code: int) -> None:
    """End this process now, whatever threads and processes tasks have left in it: Python would wait for them."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.terminate()
    if not is_full(1) and not is_full(2):
        logging.shutdown()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(code)


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
