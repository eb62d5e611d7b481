"""How many worker processes an elastic fleet runs: a process of its own asks the database, the supervisor decides.

The decision itself is `core.scaling.scaled`. While the database does not answer, nothing changes.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.core.scaling import Scale, scaled
from delayedq.operations.scaling import demand
from delayedq.store import serve, served_store
from delayedq.store.connecting import use_worker_connections
from delayedq.worker.child import STOP_SIGNALS, fork, leave, reason_of, signals_held_back
from delayedq.worker.restarts import Restarts
from delayedq.worker.sessions import keep_no_query_log
from delayedq.worker.silence import Silence

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

    from delayedq.core.scaling import Demand, Scaling
    from delayedq.worker.options import Options

logger = logging.getLogger("delayedq")

#: Seconds between two looks at the database.
EVERY = 2.0


class Elastic:
    """Belongs to the supervisor: one for each fleet."""

    def __init__(self, alias: str, options: Options, scaling: Scaling) -> None:
        self._alias = alias
        self._options = options
        self._scaling = scaling
        self._scale = Scale(scaling.lowest)
        self._process: ForkProcess | None = None
        self._restarts = Restarts()
        self._stopped = False

    def look(self) -> int:
        """How many processes the fleet is to have now."""
        self._start_due()
        with suppress(EOFError, OSError):
            while self._process is not None and self._pipe.poll():
                self._decide(self._pipe.recv())
        return self._scale.processes

    def stop(self) -> None:
        """The supervisor ends."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _decide(self, seen: Demand) -> None:
        before, self._scale = self._scale, scaled(self._scale, seen, self._scaling, time.monotonic())
        if self._scale.processes != before.processes:
            logger.info(
                "%s worker processes instead of %s serve %r: the first of %s messages has been due for %.1f s; %.1f"
                " come per second, and take %.3f s.",
                self._scale.processes, before.processes, self._alias, seen.due, seen.oldest_due, seen.arrivals,
                seen.run_seconds, extra={"pid": os.getpid(), "processes": self._scale.processes},
            )  # fmt: skip

    def _start_due(self) -> None:
        if self._process is not None and not self._process.is_alive():
            self._tell_of_death(self._process)
            self._process = None
        if self._process is None and not self._stopped and not self._restarts.due_in():
            self._restarts.started()
            self._pipe, far_end = fork.Pipe(duplex=False)
            with signals_held_back():
                self._process = fork.Process(target=self._watch, args=(far_end, os.getpid()), name="delayedq-elastic")
                self._process.start()
            far_end.close()

    def _tell_of_death(self, process: ForkProcess) -> None:
        pause = self._restarts.died()
        if not self._stopped:
            logger.warning(
                "The process that asks %r how many worker processes it needs (pid %s) died (%s); another starts in"
                " %.1f s.",
                self._alias, process.pid, reason_of(process.exitcode or 0), pause, extra={"pid": os.getpid()},
            )  # fmt: skip

    def _watch(self, pipe: Connection, supervisor: int) -> None:
        """The body of the process."""
        signal.set_wakeup_fd(-1)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # it ends with its supervisor
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        use_worker_connections()
        serve(self._alias)
        keep_no_query_log(self._alias)
        silence = Silence(f"The scaling of {self._alias!r}", self._alias, self._options.lease.total_seconds())
        wait = silence.wait("what it asks", times=4)
        silence.start()
        while os.getppid() == supervisor:
            try:
                with wait:
                    asked = demand(served_store(), self._options.serves)
                pipe.send(asked)
            except Error:
                connections[self._alias].close()
            except OSError:
                break
            time.sleep(EVERY)
        leave(0)
