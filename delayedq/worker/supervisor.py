"""The parent of all worker processes: starts them, replaces them, stops them. It runs no task and opens no database."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from math import inf
from multiprocessing import connection as waiting
from typing import TYPE_CHECKING

from delayedq.store.connecting import close_for_fork
from delayedq.store.wakeup import WakeUpPipe
from delayedq.worker.child import STOP_SIGNALS, leave
from delayedq.worker.endpoints import Endpoints
from delayedq.worker.liveness import Liveness, Reporting
from delayedq.worker.logs import is_full, never_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta
    from types import FrameType

    from delayedq.worker.fleet import Fleet

#: Seconds that a process has to end after the shutdown timeout, and then the lease keeper, which releases what it held.
LAST_MOMENTS, FAREWELL = 2.0, 1.0
#: Seconds that the lease keepers have after the last worker, if no shutdown timeout runs.
KEEPER_TIMEOUT = 10.0


class Supervisor:
    """Starts fleets, one for each database, and stops them together. Needs fork, so it runs on POSIX systems only.

    No fleet waits for another one: a database that is away stops only its own. `parent`: a pid; all end when it does.
    """

    def __init__(
        self,
        fleets: Sequence[Fleet],
        shutdown_timeout: timedelta,
        endpoints: Endpoints | None = None,
        reporting: Reporting | None = None,
        parent: int | None = None,
    ) -> None:
        self._fleets = fleets
        self._endpoints = endpoints or Endpoints([])
        self._reporting = reporting or Reporting(Liveness(fleets))
        self._shutdown_timeout = shutdown_timeout
        self._parent = parent
        self._stop_by: float | None = None
        self._pipe = WakeUpPipe()

    def run(self) -> int:
        """Supervise until all workers are done; returns the exit code of the command.

        An error of its own, such as one that a handler of LOGGING raises, ends this process and no other: the rest see
        that it is gone, finish what runs, and follow. Python would wait for them first, and they for it.
        """
        try:
            return self._supervise()
        except Exception:  # noqa: BLE001 - whatever it is, it must not wait
            with suppress(Exception):  # as of a standard error that is closed
                if not is_full(sys.stderr.fileno()):
                    traceback.print_exc()
            leave(1)

    def _supervise(self) -> int:
        close_for_fork()
        never_block()
        for fleet in self._fleets:
            fleet.start_keeper()
        signal.set_wakeup_fd(self._pipe.write_fd, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        while any(fleet.is_needed for fleet in self._fleets):
            for fleet in self._fleets:
                fleet.start_due()
            self._endpoints.start_due()
            self._wait()
            self._follow()
            self._reporting.tell()
            for fleet in self._fleets:
                fleet.reap()
            self._kill_if_late()
        self._dismiss_keepers()
        self._endpoints.stop()
        self._reporting.over()
        return 0

    def _wait(self) -> None:
        """Sleep until a child ends, a keeper answers, a signal comes, or a restart is due."""
        watched = [self._pipe.fileno(), *self._endpoints.watched()]
        watched += (one for fleet in self._fleets for one in fleet.watched())
        ready = waiting.wait(watched, timeout=min([1.0, *self._pauses()]))
        if self._pipe.fileno() in ready:
            self._pipe.clear()
        for fleet in self._fleets:
            fleet.check_keeper(ready)

    def _pauses(self) -> Iterator[float]:
        """Seconds until a process may be started again, and until those are killed that did not stop."""
        for fleet in self._fleets:
            yield from fleet.pauses()
        if self._stop_by is not None:
            yield max(0.05, self._stop_by - time.monotonic())

    def _dismiss_keepers(self) -> None:
        for fleet in self._fleets:
            fleet.dismiss_keeper()
        patience = time.monotonic() + KEEPER_TIMEOUT
        waited_for = list(self._fleets)
        while waited_for and time.monotonic() < min(patience, self._end_by()):  # a signal may come meanwhile
            waited_for = [fleet for fleet in waited_for if not fleet.keeper_has_ended()]
        for fleet in waited_for:
            fleet.kill_keeper()

    # Stopping

    def _follow(self) -> None:
        """Stop if the process is gone with which this one is to end."""
        if self._parent is not None and os.getppid() != self._parent and self._stop_by is None:
            self._stop(signal.SIGTERM, None)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_by is not None:  # the second signal
            if number == signal.SIGHUP:  # shell and kernel tell of the end of a terminal; systemd may, too
                return
            self._signal(signal.SIGKILL)
            os._exit(128 + number)
        self._stop_by = time.monotonic() + self._shutdown_timeout.total_seconds() + LAST_MOMENTS
        self._reporting.stopping()
        for fleet in self._fleets:
            fleet.stop()

    @property
    def was_stopped(self) -> bool:
        """Whether a signal has ended it, or its parent, before all workers were done."""
        return self._stop_by is not None

    def _end_by(self) -> float:
        """When the lease keepers, too, must have ended."""
        return inf if self._stop_by is None else self._stop_by + FAREWELL

    def _kill_if_late(self) -> None:
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for fleet in self._fleets:
            fleet.signal(number)
