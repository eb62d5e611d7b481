"""A worker process, started again when it dies; and how any process of ours ends."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, NoReturn

from delayedq.compat import TASKS_LOGGER
from delayedq.core.backoff import RESTARTING
from delayedq.records import leave_failures_to_us
from delayedq.store import serve, served_store
from delayedq.store.connecting import use_worker_connections
from delayedq.store.registry import WorkerCommand
from delayedq.worker.keeper import WorkerExit, worker_name
from delayedq.worker.logs import is_full
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator
    from multiprocessing.context import ForkProcess

    from delayedq.worker.options import Options
    from delayedq.worker.shared_leases import SharedLeases

# When a process that died is started again.


#: A process that dies within 10 s of its start is replaced after a pause that doubles each time.
SHORT_LIFE = 10.0


class Restarts:
    """Those of one worker, or of the lease keeper: one process after another. `longest_pause` is in seconds."""

    def __init__(self, longest_pause: float = inf) -> None:
        self._longest_pause = longest_pause
        self._started_at = self._start_at = 0.0
        self._short_lives = 0

    def started(self) -> None:
        self._started_at = time.monotonic()

    def died(self) -> float:
        """Returns the seconds until the next one may start."""
        moment = time.monotonic()
        self._short_lives = self._short_lives + 1 if moment - self._started_at < SHORT_LIFE else 0
        pause = RESTARTING(self._short_lives).total_seconds() if self._short_lives else 0.0
        pause = min(pause, self._longest_pause)
        self._start_at = moment + pause
        return pause

    def due_in(self) -> float:
        """Seconds until the next one may start; 0.0: now."""
        return max(0.0, self._start_at - time.monotonic())


# Child


logger = logging.getLogger("delayedq")

#: Seconds after which a thread must yield the GIL: the loop and its poller get their turn beside busy tasks.
SWITCH_INTERVAL = 0.001

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}

if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the end of a terminal, unless nohup has it ignored
    STOP_SIGNALS.add(signal.SIGHUP)

#: Tells a process to end when what it runs has ended.
RETIRE = signal.SIGUSR1

A_YEAR = 365 * 86_400.0  #: In seconds: that it may take.

fork = multiprocessing.get_context("fork")


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
        self.restarts = Restarts()
        self._stopped = False
        self.process: ForkProcess | None = None
        self.needed = True
        #: An elastic fleet has enough without it: it starts no process until it is enlisted again.
        self.retired = False
        self._leaves = False  #: Its process was told to end when what it runs has ended.

    def start_if_due(self) -> None:
        """Start a process if there is none, shared leases are free, and the pause is over."""
        with signals_held_back():  # a stop comes before the start, or reaches the child; never in between
            if self.process is None and self._free and self.is_wanted and not self.restarts.due_in():
                self._start()

    @property
    def is_wanted(self) -> bool:
        """Whether it is to have a process."""
        return self.needed and not self.retired

    def _start(self) -> None:
        self.restarts.started()
        self._leaves = False
        self._number = self._free.popleft()
        self.process = fork.Process(
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

    def retire(self) -> None:
        """Let the process end when what it runs has ended, however long that takes."""
        self.retired = self._leaves = True
        self.signal(RETIRE)

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
        asked = self._all_leases[self._number].asked
        self._stopped = self._stopped or asked is WorkerCommand.STOP
        if asked is not WorkerCommand.RESTART and not self._leaves:
            self._judge(code, pid)
        self.needed = not self._stopped
        reason = f"Worker process {pid} was replaced: its thread was lost." if code == ExitCode.LOST_THREADS else ""
        return WorkerExit(self._number, all_of_it=code == ExitCode.GAVE_UP, reason=reason)

    def _judge(self, code: int, pid: int | None) -> None:
        if self._stopped or (code == ExitCode.DONE and self._options.drain):
            self._stopped = True
            return
        if code == ExitCode.DONE:
            logger.warning(
                "Worker process %s (pid %s) was ended by a SIGTERM that did not come from its supervisor; another "
                "starts in %.1f s. Send signals to the supervisor.",
                self._index + 1, pid, self.restarts.died(), extra={"pid": pid},
            )  # fmt: skip
            return
        if code in {ExitCode.RECYCLE, ExitCode.LOST_THREADS}:
            return
        logger.error(
            "Worker process %s (pid %s) died (%s); another starts in %.1f s.",
            self._index + 1, pid, reason_of(code), self.restarts.died(), extra={"pid": pid},
        )  # fmt: skip


@contextmanager
def signals_held_back() -> Iterator[None]:
    """For a fork: the child must not run the supervisor's signal handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def work(alias: str, options: Options, leases: SharedLeases, parent: int) -> None:
    """The body of a worker process."""
    use_worker_connections()
    serve(alias)
    signal.set_wakeup_fd(-1)
    logging.getLogger(TASKS_LOGGER).addFilter(leave_failures_to_us)
    sys.setswitchinterval(SWITCH_INTERVAL)
    loop = Loop(served_store(), options, worker_name(os.getpid(), options.name), leases)
    leases.register(os.getpid())
    for number in STOP_SIGNALS - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # a terminal sends it to all; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.signal(RETIRE, lambda *_: loop.stop(within=A_YEAR))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        code: int = loop.run(supervisor=parent)
    except BaseException:
        logger.exception("Worker process %s ends with an error.", os.getpid(), extra={"pid": os.getpid()})
        code = 1
    leave(code)


def leave(code: int) -> NoReturn:
    """End this process now, whatever threads and processes tasks have left in it: Python would wait for them."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.terminate()
    if not is_full(1) and not is_full(2):
        with suppress(Exception):  # handlers may raise anything
            logging.shutdown()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(code)


def reason_of(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
