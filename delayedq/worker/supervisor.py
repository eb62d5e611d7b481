"""The parent of all worker processes: starts them, replaces them, stops them. It runs no task and opens no database."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection as waiting
from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.core.backoff import Exponential
from delayedq.store import default_store
from delayedq.worker.lease_keeper import Bereaved, LeaseKeeper
from delayedq.worker.ledger import CAPACITY, Ledger
from delayedq.worker.loop import Loop
from delayedq.worker.presence import worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from delayedq.worker.loop import Options

logger = logging.getLogger("delayedq")

#: How a worker process ended. DONE: drained or stopped. RECYCLE: ran max_tasks. GAVE_UP: tasks outlived the shutdown.
DONE, RECYCLE, GAVE_UP = 0, 3, 4
#: A process that dies sooner is replaced after a pause that doubles each time.
SHORT_LIFE = 10.0
PAUSES = Exponential(initial=timedelta(seconds=0.5), factor=2, maximum=timedelta(seconds=30))
#: Threads take turns often, so that the loop and its lookout get theirs beside busy tasks.
SWITCH_INTERVAL = 0.001

_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_fork = multiprocessing.get_context("fork")


class Supervisor:
    """Needs fork: it runs on POSIX systems."""

    def __init__(self, options: Options, processes: int) -> None:
        self._options = options
        self._ledgers = [Ledger(CAPACITY + options.threads) for _ in range(processes)]
        self._children = [Child(index, ledger, options) for index, ledger in enumerate(self._ledgers)]
        self._stop_by: float | None = None
        self._keeper_at = 0.0
        self._keeper_deaths = 0
        self._wakeup, self._wake_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)

    def run(self) -> int:
        """Supervise until all workers are done; returns the exit code of the command."""
        connections.close_all()  # what was opened before must not be shared by the children
        self._start_keeper()
        signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        while any(child.needed for child in self._children):
            for child in self._children:
                child.start_if_due()
            self._wait()
            self._mourn()
            self._kill_if_late()
        self._keeper_pipe.close()
        self._keeper.join()
        return 0

    def _start_keeper(self) -> None:
        self._keeper_pipe, far_end = _fork.Pipe()

        def keep() -> None:
            self._keeper_pipe.close()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it ends when nobody needs it any more
            LeaseKeeper(default_store(), self._ledgers, self._options, far_end).run()

        self._keeper = _fork.Process(target=keep, name="delayedq-lease-keeper")
        with signals_held_back():
            self._keeper.start()
        far_end.close()

    def _wait(self) -> None:
        """Sleep until a child ends, the keeper answers, a signal comes, or a restart is due."""
        watched: list[Any] = [self._wakeup]
        if self._keeper.is_alive():
            watched += [self._keeper_pipe, self._keeper.sentinel]
        watched += [child.process.sentinel for child in self._children if child.process]
        ready = waiting.wait(watched, timeout=1.0)
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        if self._keeper_pipe in ready:
            self._keeper_answered()
        if not self._keeper.is_alive() and time.monotonic() >= self._keeper_at:
            self._replace_keeper()

    def _keeper_answered(self) -> None:
        try:
            buried: Bereaved = self._keeper_pipe.recv()
        except (EOFError, OSError):
            return
        self._children[buried.ledger].buried()

    def _replace_keeper(self) -> None:
        self._keeper_deaths += 1
        self._keeper_at = time.monotonic() + PAUSES(self._keeper_deaths).total_seconds()
        logger.error("The lease keeper died; another one starts.")
        self._keeper_pipe.close()
        self._start_keeper()
        for child in self._children:
            if child.mourned is not None:
                self._tell_keeper(child.mourned)

    def _tell_keeper(self, died: Bereaved) -> None:
        with suppress(OSError):  # it has died just now, and the next one will be told
            self._keeper_pipe.send(died)

    def _mourn(self) -> None:
        for child in self._children:
            if died := child.reap():
                self._tell_keeper(died)

    # Stopping

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_by is not None:  # the second signal
            for child in self._children:
                child.signal(signal.SIGKILL)
            os._exit(128 + number)
        self._stop_by = time.monotonic() + self._options.shutdown_timeout.total_seconds() + 2.0
        for child in self._children:
            child.stop()

    def _kill_if_late(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            for child in self._children:
                child.signal(signal.SIGKILL)


class Child:
    """One worker process after another, all with the same ledger."""

    def __init__(self, index: int, ledger: Ledger, options: Options) -> None:
        self._index = index
        self._ledger = ledger
        self._options = options
        self._started = 0.0
        self._start_at = 0.0
        self._short_lives = 0
        self._stopped = False
        self.process: ForkProcess | None = None
        #: What the keeper was asked to bury and has not answered yet.
        self.mourned: Bereaved | None = None
        self.needed = True

    def start_if_due(self) -> None:
        with signals_held_back():  # the child is told to stop before it starts, or after, but never in between
            if not (self.process or self.mourned) and self.needed and time.monotonic() >= self._start_at:
                self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self.process = _fork.Process(
            target=work, args=(self._options, self._ledger, os.getpid()), name=f"delayedq-worker-{self._index + 1}"
        )
        self.process.start()

    def stop(self) -> None:
        self._stopped = True
        self.signal(signal.SIGTERM)
        if self.process is None:
            self.needed = False

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def reap(self) -> Bereaved | None:
        """If the process has ended, decide about another; returns what the keeper shall do."""
        if self.process is None or self.process.is_alive():
            return None
        code = self.process.exitcode or 0
        self.process.join()
        self.process = None
        self._judge(code)
        self.needed = not self._stopped
        self.mourned = Bereaved(self._index, all_of_it=code == GAVE_UP)
        return self.mourned

    def _judge(self, code: int) -> None:
        if code == DONE or self._stopped:
            self._stopped = True
            return
        if code == RECYCLE:
            return
        short = time.monotonic() - self._started < SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        pause = PAUSES(self._short_lives).total_seconds() if short else 0.0
        self._start_at = time.monotonic() + pause
        logger.error("Worker process %s died (%s); another starts in %.1f s.", self._index + 1, _reason(code), pause)

    def buried(self) -> None:
        self.mourned = None


@contextmanager
def signals_held_back() -> Iterator[None]:
    """A fork happens in here: a signal must not meet the supervisor's handlers in the child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def work(options: Options, ledger: Ledger, parent: int) -> None:
    """The body of a worker process."""
    signal.set_wakeup_fd(-1)
    sys.setswitchinterval(SWITCH_INTERVAL)
    loop = Loop(default_store(), options, worker_name(os.getpid()), ledger)
    ledger.enlist(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    finished = loop.run(alive=lambda: os.getppid() == parent)
    logging.shutdown()
    if not finished:
        os._exit(GAVE_UP)
    if options.max_tasks is not None and loop.exhausted:
        sys.exit(RECYCLE)


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
