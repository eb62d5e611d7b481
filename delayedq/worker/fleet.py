"""The processes of one database: its workers and the lease keeper that outlives them."""

from __future__ import annotations

import logging
import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from delayedq.store import serve, served_store
from delayedq.store.connecting import use_worker_connections
from delayedq.worker.child import STOP_SIGNALS, Child, fork, leave, reason_of, signals_held_back
from delayedq.worker.lease_keeper import LeaseKeeper, WorkerExit
from delayedq.worker.restarts import Restarts
from delayedq.worker.shared_leases import CAPACITY, SharedLeases
from delayedq.worker.shared_releases import SharedReleases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from delayedq.worker.elastic import Elastic
    from delayedq.worker.options import Options

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
