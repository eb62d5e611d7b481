"""The parent of all worker processes: starts them, replaces them, stops them. It runs no task and opens no database."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from math import inf
from multiprocessing import connection as waiting
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from delayedq.core.scaling import Scale, scaled
from delayedq.operations.backlogs import demand
from delayedq.store import serve, served_store
from delayedq.store.connecting import close_for_fork, use_worker_connections
from delayedq.store.database import WakeUpPipe
from delayedq.worker.child import STOP_SIGNALS, Child, Restarts, fork, leave, reason_of, signals_held_back
from delayedq.worker.endpoints import Endpoints, Liveness, Reporting
from delayedq.worker.keeper import LeaseKeeper, WorkerExit
from delayedq.worker.logs import is_full, never_block
from delayedq.worker.sessions import keep_no_query_log
from delayedq.worker.shared_leases import CAPACITY, SharedLeases, SharedReleases
from delayedq.worker.silence import Silence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from delayedq.core.scaling import Demand, Scaling
    from delayedq.worker.options import Options

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


# The processes of one database: its workers and the lease keeper that outlives them.


logger = logging.getLogger("delayedq")

#: Shared leases for each process: those of a dead one are released while the next one runs.
BUFFERS = 2


class Fleet:
    """The `processes` workers of one database, and their lease keeper; an `elastic` fleet runs as many as it wants."""

    def __init__(self, alias: str, options: Options, processes: int, elastic: Elastic | None = None) -> None:
        self._alias = alias
        self._options = options
        self._processes = processes
        self._all_leases = [SharedLeases(CAPACITY + options.threads) for _ in range(BUFFERS * processes)]
        self._free = deque(range(BUFFERS * processes))
        self._shared_releases = SharedReleases()
        #: What the keeper was asked to release and has not answered yet, by the number of the shared leases.
        self._unreleased: dict[int, WorkerExit] = {}
        self._elastic = elastic
        self._children = [Child(index, alias, self._all_leases, self._free, options) for index in range(processes)]
        # Without a keeper, leases run out.
        self._keeper_restarts = Restarts(longest_pause=options.lease.total_seconds() / 10)
        #: The keeper has died, and another one is to be started.
        self._keeper_died = False

    @property
    def leases(self) -> Sequence[SharedLeases]:
        """Those of all worker processes; those without a process have no pid."""
        return self._all_leases

    @property
    def is_needed(self) -> bool:
        return any(child.needed for child in self._children)

    def start_due(self) -> None:
        """Start the workers that are due, and retire those that an elastic fleet does not want any more."""
        if self._elastic is not None:
            self._follow(self._elastic.look())
        for child in self._children:
            child.start_if_due()

    def _follow(self, wanted: int) -> None:
        for child in self._children[:wanted]:
            child.retired = False
        for child in self._children[wanted:]:
            if not child.retired:
                child.retire()

    def reap(self) -> None:
        """Ask the keeper to release what workers that ended held."""
        for child in self._children:
            if worker_exit := child.reap():
                self._unreleased[worker_exit.leases_number] = worker_exit
                self._tell_keeper(worker_exit)

    def stop(self) -> None:
        """Tell the workers to stop."""
        if self._elastic is not None:
            self._elastic.stop()
        for child in self._children:
            child.stop()

    def signal(self, number: int) -> None:
        """Send a signal to each worker process."""
        for child in self._children:
            child.signal(number)

    # What a supervisor waits for

    def watched(self) -> Iterator[Any]:
        """What is ready when a child ends or the keeper answers."""
        if self._keeper.is_alive():
            yield from (self._keeper_pipe, self._keeper.sentinel)
        yield from (child.process.sentinel for child in self._children if child.process)

    def pauses(self) -> Iterator[float]:
        """Seconds until a process may be started again."""
        if self._keeper_died:
            yield self._keeper_restarts.due_in()
        for child in self._children:
            if child.process is None and child.is_wanted and self._free:
                yield child.restarts.due_in()

    # The lease keeper

    def check_keeper(self, ready: Sequence[object]) -> None:
        """Read its answer, if it is `ready`, and replace a keeper that has died."""
        if self._keeper_pipe in ready:
            self._keeper_answered()
        if not self._keeper.is_alive():
            self._replace_keeper()

    def start_keeper(self) -> None:
        """Fork it."""
        self._keeper_pipe, far_end = fork.Pipe()
        for leases in self._all_leases:
            leases.let_claim_expired(0)  # until the keeper has renewed

        def keep() -> None:
            self._keeper_pipe.close()
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it ends when the supervisor says so, or all workers have ended
            use_worker_connections()
            serve(self._alias)
            store, releases = served_store(), self._shared_releases
            LeaseKeeper(store, self._all_leases, self._options, far_end, self._processes, releases).run()
            leave(0)

        self._keeper = fork.Process(target=keep, name="delayedq-lease-keeper")
        with signals_held_back():
            self._keeper.start()
        self._keeper_restarts.started()
        far_end.close()

    def _replace_keeper(self) -> None:
        """Log that it died, and start another one when that is due."""
        if not self._keeper_died:
            self._keeper_died = True
            logger.error(
                "The lease keeper (pid %s) died (%s); another starts in %.1f s.",
                self._keeper.pid, reason_of(self._keeper.exitcode or 0), self._keeper_restarts.died(),
                extra={"pid": self._keeper.pid},
            )  # fmt: skip
        if not self._keeper_restarts.due_in():
            self._start_next_keeper()

    def _start_next_keeper(self) -> None:
        self._keeper_died = False
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
                if self._unreleased.pop(released.leases_number, None):
                    self._free.append(released.leases_number)

    # The end

    def dismiss_keeper(self) -> None:
        """Tell it to end. Closing the pipe is not enough: a child that a task forked may have it open."""
        self._tell_keeper(None)

    def keeper_has_ended(self) -> bool:
        """Whether it has ended on request. One that died is replaced: it may not have released all messages."""
        self._keeper.join(0.1)
        code = self._keeper.exitcode
        if code:
            self._replace_keeper()
            self._tell_keeper(None)
        return code == 0

    def kill_keeper(self) -> None:
        """End it, if it has not ended."""
        if self._keeper.is_alive():
            logger.warning("The lease keeper waits for the database; what was not released is left to its lease.")
            self._keeper.kill()
            self._keeper.join()


# How many worker processes an elastic fleet runs: a process of its own asks the database, the supervisor decides.
#
# The decision itself is `core.scaling.scaled`. While the database does not answer, nothing changes.


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
