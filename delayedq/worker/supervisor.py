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
from math import inf
from multiprocessing import connection as waiting
from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.signals import leave_failures_to_us
from delayedq.store import served_store
from delayedq.store.wakeup import WakeUpPipe
from delayedq.worker.lease_keeper import LeaseKeeper, WorkerExit
from delayedq.worker.logs import is_full, never_block
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode
from delayedq.worker.registration import worker_name
from delayedq.worker.restarts import Restarts
from delayedq.worker.shared_leases import CAPACITY, SharedLeases
from delayedq.worker.shared_releases import SharedReleases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from delayedq.worker.options import Options

logger = logging.getLogger("delayedq")

#: Seconds after which a thread must yield the GIL: the loop and its poller get their turn beside busy tasks.
SWITCH_INTERVAL = 0.001
#: Seconds that a process has to end after the shutdown timeout, and then the lease keeper, which releases what it held.
LAST_MOMENTS, FAREWELL = 2.0, 1.0
#: Seconds that the lease keeper has after the last worker, if no shutdown timeout runs.
KEEPER_TIMEOUT = 10.0
#: Shared leases for each process: those of a dead one are released while the next one runs.
BUFFERS = 2

_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_fork = multiprocessing.get_context("fork")


class Supervisor:
    """Starts `processes` workers and their lease keeper. Needs fork, so it runs on POSIX systems only."""

    def __init__(self, options: Options, processes: int) -> None:
        self._options = options
        self._processes = processes
        self._all_leases = [SharedLeases(CAPACITY + options.threads) for _ in range(BUFFERS * processes)]
        self._free = deque(range(BUFFERS * processes))
        self._shared_releases = SharedReleases()
        #: What the keeper was asked to release and has not answered yet, by the number of the shared leases.
        self._unreleased: dict[int, WorkerExit] = {}
        self._children = [Child(index, self._all_leases, self._free, options) for index in range(processes)]
        self._stop_by: float | None = None
        # Without a keeper, leases run out.
        self._keeper_restarts = Restarts(longest_pause=options.lease.total_seconds() / 10)
        #: The keeper has died, and another one is to be started.
        self._keeper_died = False
        self._pipe = WakeUpPipe()

    def run(self) -> int:
        """Supervise until all workers are done; returns the exit code of the command."""
        connections.close_all()  # the children must not share what was opened before
        never_block()
        self._start_keeper()
        signal.set_wakeup_fd(self._pipe.write_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        while any(child.needed for child in self._children):
            for child in self._children:
                child.start_if_due()
            self._wait()
            self._reap()
            self._kill_if_late()
        self._dismiss_keeper()
        return 0

    # The lease keeper

    def _start_keeper(self) -> None:
        self._keeper_pipe, far_end = _fork.Pipe()
        for leases in self._all_leases:
            leases.let_claim_expired(0)  # until the keeper has renewed

        def keep() -> None:
            self._keeper_pipe.close()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it ends when the supervisor says so, or all workers have ended
            LeaseKeeper(
                served_store(), self._all_leases, self._options, far_end, self._processes, self._shared_releases
            ).run()
            _leave(0)

        self._keeper = _fork.Process(target=keep, name="delayedq-lease-keeper")
        with signals_held_back():
            self._keeper.start()
        self._keeper_restarts.started()
        far_end.close()

    def _replace_keeper(self) -> None:
        """Notice that it died, and start another one when that is due."""
        if not self._keeper_died:
            self._keeper_died = True
            logger.error(
                "The lease keeper (pid %s) died (%s); another starts in %.1f s.",
                self._keeper.pid, _reason(self._keeper.exitcode or 0), self._keeper_restarts.died(),
                extra={"pid": self._keeper.pid},
            )  # fmt: skip
        if not self._keeper_restarts.due_in():
            self._start_next_keeper()

    def _start_next_keeper(self) -> None:
        self._keeper_died = False
        self._keeper_pipe.close()
        self._start_keeper()
        for worker_exit in self._unreleased.values():
            self._tell_keeper(worker_exit)

    def _tell_keeper(self, worker_exit: WorkerExit | None) -> None:
        with suppress(OSError):  # it has died just now; the next one is told
            self._keeper_pipe.send(worker_exit)

    def _keeper_answered(self) -> None:
        with suppress(EOFError, OSError):
            while self._keeper_pipe.poll():
                released: WorkerExit = self._keeper_pipe.recv()
                if self._unreleased.pop(released.leases_number, None):
                    self._free.append(released.leases_number)

    def _dismiss_keeper(self) -> None:
        """The pipe alone would not tell it to end: a child that a task forked may have inherited this end of it."""
        patience = time.monotonic() + KEEPER_TIMEOUT
        self._tell_keeper(None)
        while time.monotonic() < min(patience, self._end_by()):  # a signal may come meanwhile
            self._keeper.join(0.1)
            if self._keeper.exitcode == 0:
                return
            if not self._keeper.is_alive():  # what it has not released is left to the next one
                self._replace_keeper()
                self._tell_keeper(None)
        if self._keeper.is_alive():
            logger.warning("The lease keeper waits for the database; what was not released is left to its lease.")
            self._keeper.kill()
            self._keeper.join()

    # Waiting and reaping

    def _wait(self) -> None:
        """Sleep until a child ends, the keeper answers, a signal comes, or a restart is due."""
        watched: list[Any] = [self._pipe.fileno()]
        if self._keeper.is_alive():
            watched += [self._keeper_pipe, self._keeper.sentinel]
        watched += [child.process.sentinel for child in self._children if child.process]
        ready = waiting.wait(watched, timeout=min([1.0, *self._pauses()]))
        if self._pipe.fileno() in ready:
            self._pipe.clear()
        if self._keeper_pipe in ready:
            self._keeper_answered()
        if not self._keeper.is_alive():
            self._replace_keeper()

    def _pauses(self) -> Iterator[float]:
        """Seconds until a process may be started again, and until those are killed that did not stop."""
        if self._keeper_died:
            yield self._keeper_restarts.due_in()
        for child in self._children:
            if child.process is None and child.needed and self._free:
                yield child.restarts.due_in()
        if self._stop_by is not None:
            yield max(0.05, self._stop_by - time.monotonic())

    def _reap(self) -> None:
        for child in self._children:
            if worker_exit := child.reap():
                self._unreleased[worker_exit.leases_number] = worker_exit
                self._tell_keeper(worker_exit)

    # Stopping

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_by is not None:  # the second signal
            for child in self._children:
                child.signal(signal.SIGKILL)
            os._exit(128 + number)
        self._stop_by = time.monotonic() + self._options.shutdown_timeout.total_seconds() + LAST_MOMENTS
        for child in self._children:
            child.stop()

    def _end_by(self) -> float:
        """When the lease keeper, too, must have ended."""
        return inf if self._stop_by is None else self._stop_by + FAREWELL

    def _kill_if_late(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            for child in self._children:
                child.signal(signal.SIGKILL)


class Child:
    """One worker process after another. Each takes shared leases that are `free`."""

    def __init__(self, index: int, all_leases: list[SharedLeases], free: deque[int], options: Options) -> None:
        self._index = index
        self._all_leases = all_leases
        self._free = free
        self._number = 0
        self._options = options
        self.restarts = Restarts()
        self._stopped = False
        self.process: ForkProcess | None = None
        self.needed = True

    def start_if_due(self) -> None:
        """Start a process if there is none, shared leases are free, and the pause is over."""
        with signals_held_back():  # a stop comes before the start, or reaches the child; never in between
            if self.process is None and self._free and self.needed and not self.restarts.due_in():
                self._start()

    def _start(self) -> None:
        self.restarts.started()
        self._number = self._free.popleft()
        self.process = _fork.Process(
            target=work,
            args=(self._options, self._all_leases[self._number], os.getpid()),
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
        reason = f"Worker process {pid} was replaced: its thread was lost." if code == ExitCode.LOST_THREADS else ""
        return WorkerExit(self._number, all_of_it=code == ExitCode.GAVE_UP, reason=reason)

    def _judge(self, code: int, pid: int | None) -> None:
        if code == ExitCode.DONE or self._stopped:
            self._stopped = True
            return
        if code in {ExitCode.RECYCLE, ExitCode.LOST_THREADS}:
            return
        logger.error(
            "Worker process %s (pid %s) died (%s); another starts in %.1f s.",
            self._index + 1, pid, _reason(code), self.restarts.died(), extra={"pid": pid},
        )  # fmt: skip


@contextmanager
def signals_held_back() -> Iterator[None]:
    """For a fork: the child must not run the supervisor's signal handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def work(options: Options, leases: SharedLeases, parent: int) -> None:
    """The body of a worker process."""
    signal.set_wakeup_fd(-1)
    logging.getLogger("django.tasks").addFilter(leave_failures_to_us)
    sys.setswitchinterval(SWITCH_INTERVAL)
    loop = Loop(served_store(), options, worker_name(os.getpid()), leases)
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
