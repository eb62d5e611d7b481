"""The process that renews the leases of all workers of a supervisor, whatever their tasks do to their interpreters.

It reads from shared memory which messages each worker holds, renews their leases three times per lease, and tells the
worker which were lost. When a worker has died it releases, uncharged, what that process had not started, so the
batch-mates of a message that kills its process are not charged for it; what a transaction has locked it renews until
that can be released too. What had started is left to its lease. It also ends workers that hang, keeps the worker
registry, and prunes history.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error, ProgrammingError, connections

from delayedq.conf import get_settings
from delayedq.flows.sweeping import Sweeping
from delayedq.limits.sizes import forget_unused
from delayedq.models import Message
from delayedq.store import worker_registry
from delayedq.store.registry import WorkerCommand, WorkerState
from delayedq.store.sweeps import Swept, sweeps
from delayedq.worker.outage import Outage
from delayedq.worker.releases import Releases
from delayedq.worker.sessions import keep_no_query_log
from delayedq.worker.shared_leases import SharedReleases, lease_clock
from delayedq.worker.silence import Silence, end_lost_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from delayedq.store.base import Store
    from delayedq.worker.options import Options
    from delayedq.worker.shared_leases import SharedLeases

# What the lease keeper removes besides history, and what apps look at: page by page, and later on where it stopped.


logger = logging.getLogger("delayedq")


class SweepRounds:
    """Rounds over these rows. Most of them stay: a round that takes long goes on later, and begins nothing anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sweeps = [*sweeps()]
        self._after: Any = None

    def go_on(self, pause_at: float) -> bool:
        """Until the round is over, or this moment of `time.monotonic()`.

        Returns whether there is more to remove: nothing of a long round that only finds what stays is pressing.
        """
        removed = 0
        while self._sweeps:
            removed += self._next_page().removed
            if self._sweeps and time.monotonic() >= pause_at:
                return removed > 0
        self._sweeps = [*sweeps()]
        return False

    def _next_page(self) -> Swept:
        """The next page. After an error the round goes on with the others: one table that is locked, or was not
        migrated, and an app with a defect hold up nothing else.
        """
        try:
            page = self._sweeps[0](self._store, self._after)
        except Exception as error:
            sweep, self._after = self._sweeps.pop(0), None
            if isinstance(error, Error):
                raise
            logger.exception("A sweep over rows of an app has failed: %s.", getattr(sweep, "__qualname__", sweep))
            return Swept(0, None)
        self._after = page.reached
        if page.reached is None:
            self._sweeps.pop(0)
        return page


# Worker processes whose loop has stopped: a call into C holds the interpreter, and nothing in them can end it.


#: Seconds between two observations that count at most: if this process was frozen too, the loop may have been as well.
LONGEST_GAP = 2.0

#: A loop that has nothing to do turns every 3 s; a limit that is lower than this is not taken at its word.
SHORTEST_LIMIT = 6.0


class HungWorkers:
    """Observes the loops of `all_leases`; a process whose loop is silent for `limit` is killed, and that is logged."""

    def __init__(self, store: Store, all_leases: Sequence[SharedLeases], limit: timedelta) -> None:
        self._store = store
        self._all_leases = all_leases
        self._limit = max(SHORTEST_LIMIT, limit.total_seconds())
        self._observed_at = time.monotonic()
        #: By process: the last turn seen, and the seconds observed since.
        self._silences: dict[int, tuple[int, float]] = {}
        #: Why each process was killed.
        self.reasons: dict[int, str] = {}

    def end(self) -> None:
        """Observe every loop once; call it every second or so."""
        moment = time.monotonic()
        gap = min(moment - self._observed_at, LONGEST_GAP)
        self._observed_at = moment
        before, self._silences = self._silences, {}
        for leases in self._all_leases:
            if pid := leases.pid:
                turned, silence = before.get(pid, (leases.turned, 0.0))
                silence = silence + gap if turned == leases.turned else 0.0
                self._silences[pid] = leases.turned, silence
                if silence >= self._limit and pid not in self.reasons and leases.is_alive():
                    self._kill(leases, pid, silence)

    def _kill(self, leases: SharedLeases, pid: int, silence: float) -> None:
        self.reasons[pid] = f"Worker process {pid} was ended: its loop was silent for {silence:.0f} s."
        started = [entry.id for entry in leases.entries() if entry.started]
        rows = self._rows(started)
        logger.error(
            "Worker process %s is ended: its loop was silent for %.0f s (a call into C that holds the GIL, or a signal "
            "receiver that does not return?). It ran: %s.",
            pid, silence, ", ".join(f"{kind} {id_}" for id_, kind, _ in rows) or started or "nothing",
            extra={"pid": pid, "message_ids": started, "queues": sorted({queue for *_, queue in rows})},
        )  # fmt: skip
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _rows(self, ids: Sequence[int]) -> list[tuple[int, str, str]]:
        with suppress(Error):
            return list(Message.objects.using(self._store.alias).filter(id__in=ids).values_list("id", "kind", "queue"))
        return []


# Keeps the worker registry, which operators see: one statement every 10 s for all processes of a supervisor.
#
# The lease keeper sends it, from what it reads in the shared leases: no task can hold it up.


#: Seconds between two heartbeats of the workers.
EVERY = 10.0

#: While a process has not registered yet, the keeper checks every 0.5 s; that takes no statement.
SOON = 0.5

#: Rows of workers that could not deregister (host crash) are deleted after 1 h; other workers check every 10 min. So
#: they do for renewals beside locked rows that were left.
EXPIRE_AFTER = timedelta(hours=1)

EXPIRE_EVERY = 600.0

#: At most 100 running messages are named in a row.
NAMED = 100


def worker_name(pid: int, name: str = "") -> str:
    """The name of a worker process in leases, logs and the registry; `name` is what `run_workers --name` was given.

    >>> worker_name(4711, "mail") == f"mail@{socket.gethostname()}:4711"
    True
    """
    return f"{name}@{socket.gethostname()}:{pid}" if name else f"{socket.gethostname()}:{pid}"


class Registration:
    """The part of the lease keeper that writes the registry."""

    def __init__(self, store: Store, all_leases: Sequence[SharedLeases], options: Options, processes: int) -> None:
        self._store = store
        self._registry = worker_registry(store.alias)
        self._all_leases = all_leases
        self._options = options
        self._processes = processes
        self._known: set[str] = set()
        self._due = 0.0
        self._expire_at = 0.0

    def due_in(self) -> float:
        """Seconds until the next heartbeat is due."""
        if len(self._known) < self._processes:
            return SOON
        return max(0.0, self._due - time.monotonic())

    def update(self) -> None:
        """Write the heartbeats if they are due, or if a process is new. Raises django.db.Error."""
        present = [self._state(leases) for leases in self._all_leases if leases.pid]
        names = {worker.name for worker in present}
        if present and (names != self._known or time.monotonic() >= self._due):
            self._tell(self._heartbeat(present))
            self._due = time.monotonic() + EVERY
        self._known = names
        if time.monotonic() >= self._expire_at:
            self._registry.expire(EXPIRE_AFTER)
            self._store.sweep()
            self._expire_at = time.monotonic() + EXPIRE_EVERY

    def _heartbeat(self, present: Sequence[WorkerState]) -> dict[str, WorkerCommand]:
        asked: dict[str, WorkerCommand] = {}
        for first in (False, True):
            if some := [worker for worker in present if (worker.name not in self._known) == first]:
                asked |= self._registry.heartbeat(some, first=first)
        return asked

    def _tell(self, asked: Mapping[str, WorkerCommand]) -> None:
        """Pass on what operators ask of the processes."""
        for leases in self._all_leases:
            if leases.pid:
                leases.ask(asked.get(self._name(leases)))

    def deregister(self, leases: SharedLeases) -> None:
        """Delete the row of a process that has ended. Raises django.db.Error."""
        if leases.pid:
            self._registry.deregister([self._name(leases)])

    def _state(self, leases: SharedLeases) -> WorkerState:
        entries = leases.entries()
        running = [entry.id for entry in entries if entry.started]
        return WorkerState(
            name=self._name(leases),
            host=socket.gethostname(),
            pid=leases.pid,
            threads=self._options.threads - leases.lost_threads,
            queues=",".join(self._options.queues or ()),
            excluded_queues=",".join(self._options.excluded),
            lease=self._options.lease.total_seconds(),
            age=leases.age(),
            held=len(entries),
            running=json.dumps(running[:NAMED]),
            problems=", ".join(self._problems(leases)),
        )

    def _name(self, leases: SharedLeases) -> str:
        return worker_name(leases.pid, self._options.name)

    def _problems(self, leases: SharedLeases) -> Iterator[str]:
        if leases.asked:
            yield f"asked to {leases.asked}" if leases.asked is not WorkerCommand.QUIET else "quiet"
        if leases.deaf:
            yield "deaf listener"
        if leases.lost_threads:
            yield f"{leases.lost_threads} of {self._options.threads} threads lost"


# Lease keeper


#: A loop sends a heartbeat every 3 s; one that was silent for 10 s, and for a lease, is stuck or frozen.
SILENCE = 10.0

#: Seconds between two turns of the keeper, at most: it observes loops, and whether its supervisor lives.
TURN = 1.0

#: Two renewals at least this part of a lease apart show that nothing blocked renewals between them.
RENEWED_EVERY = 0.25

#: Leases of rows that a transaction has locked are tried again after a tenth of the lease, at most 1 s.
RETRY_LOCKED = 1.0

#: History is pruned once a minute, 1,000 rows at a time.
PRUNE_EVERY = 60.0
#: Seconds until partitions are tried again, at most; of a user who may not change them, at least and at most.
LONGEST_PAUSE = 3_600.0
REFUSED_PAUSES = 3_600.0, 86_400.0

PRUNE_ROWS = 1_000

#: Pruning pauses for the leases after 1 s.
PRUNE_FOR = 1.0

#: Seconds between two sweeps of the flows that have not ended; they take at most a tenth of the keeper's time.
SWEEP_EVERY, SWEEP_SHARE = 10.0, 10.0


class WorkerExit(NamedTuple):
    """The worker process that used the shared leases of this number has ended: release what it held.

    What it had started is left to its lease, unless `all_of_it` is released too, or it is charged for a `reason`.
    """

    leases_number: int
    all_of_it: bool
    reason: str = ""


class LeaseKeeper:
    """`supervisor` is a pipe: a WorkerExit comes in for each process that ended, and goes back when it is released.

    None comes in when the supervisor ends, after its workers. If the supervisor is killed, the keeper goes on until the
    workers have ended: it is not told of exits then, and checks which processes exist.
    """

    def __init__(
        self,
        store: Store,
        all_leases: Sequence[SharedLeases],
        options: Options,
        supervisor: Connection,
        processes: int | None = None,
        shared_releases: SharedReleases | None = None,
    ) -> None:
        self._store = store
        self._all_leases = all_leases
        self._lease = options.lease
        self._supervisor = supervisor
        self._parent = os.getppid()
        self._registration = Registration(store, all_leases, options, processes or len(all_leases))
        self._hung = HungWorkers(store, all_leases, get_settings().HUNG_AFTER)
        self._releases = Releases(store, options.lease, shared_releases or SharedReleases())
        # Other keepers wait for a part of the lease until they take what has expired: try again sooner than that.
        self._outage = Outage("The lease keeper", longest_pause=options.lease.total_seconds() / 10)
        self._silence = Silence("The lease keeper", store.alias, options.lease.total_seconds())
        self._wait = self._silence.wait("a renewal of leases")
        self._partitions_wait = self._silence.wait("the maintenance of partitions")
        self._renew_at = 0.0
        self._renewed_at = float("-inf")
        self._worker_exits: list[WorkerExit] = []
        self._orphaned = self._ended = False
        self._prune_at = self._partition_at = 0.0
        self._partition_pause = PRUNE_EVERY
        self._sweep_at = 0.0
        self._rounds = SweepRounds(store)
        self._sweeping = Sweeping(store, patience=0.0)
        #: Each may take as long as ANSWER_WITHIN says.
        self._steps = (
            (self._keep_if_due, self._wait),
            (self._end_lost_sessions, self._wait),
            (self._release, self._wait),
            (self._registration.update, self._wait),
            (self._prune, self._wait),
            (self._sweep, self._wait),
            (self._maintain_partitions, self._partitions_wait),
        )

    def run(self) -> None:
        """Serve until the supervisor says farewell; without one, until all workers have ended."""
        keep_no_query_log(self._store.alias)
        self._silence.start()
        while not self._ended:
            self._hung.end()
            if not self._outage.lasts():
                self._work()
            self._listen(self._patience())
        with suppress(Error):  # if the database is away now, the leases will expire
            self._release_rest()
        self._silence.stop()
        connections.close_all()

    def _release_rest(self) -> None:
        """All workers have ended. What is locked is renewed until it can be released."""
        known = {one.leases_number for one in self._worker_exits}
        others = [number for number in range(len(self._all_leases)) if number not in known]
        self._worker_exits += [WorkerExit(number, all_of_it=False) for number in others]
        with self._wait:
            self._release_exited()
        while self._worker_exits or not self._releases.is_over(late=self._orphaned):
            time.sleep(max(0.0, min(TURN, self._releases.due_in())))
            with self._wait:
                self._keep_if_due()
                self._release_exited()
                self._releases.go_on()

    def _work(self) -> None:
        lacks_connection = False
        try:
            for step, wait in self._steps:
                with wait:
                    step()
        except Error as error:
            lacks_connection = connections[self._store.alias].connection is None
            self._outage.begin(error)
            connections[self._store.alias].close()
        else:
            self._outage.end()
        for leases in self._all_leases:
            leases.tell_keeper_lacks_connection(lacks_connection)

    def _keep_if_due(self) -> None:
        if time.monotonic() >= self._renew_at:
            self._keep()

    def _end_lost_sessions(self) -> None:
        end_lost_sessions(self._store.database)

    def _release(self) -> None:
        self._release_exited()
        self._releases.expect([token for leases in self._all_leases for token in leases.take_given_up()])
        self._releases.go_on()

    def _patience(self) -> float:
        """Seconds until there is something to do if no worker ends."""
        if self._outage.lasts():
            return min(TURN, self._outage.rest())
        due_in = min(self._renew_at - time.monotonic(), self._registration.due_in(), self._releases.due_in())
        return max(0.0, min(TURN, due_in))

    def _listen(self, seconds: float) -> None:
        """Wait for the supervisor to tell of a worker that has ended."""
        if self._orphaned:
            time.sleep(seconds)
            self._find_exited()
            return
        try:
            if self._supervisor.poll(seconds):
                told: WorkerExit | None = self._supervisor.recv()
                if told is None:
                    self._ended = True
                else:
                    self._worker_exits.append(told)
        except (EOFError, OSError):
            self._orphaned = True
        if os.getppid() != self._parent:
            self._orphaned = True
            logger.warning(
                "The supervisor (pid %s) is gone; leases are kept until its workers end.",
                self._parent, extra={"pid": os.getpid()},
            )  # fmt: skip

    def _find_exited(self) -> None:
        """Without a supervisor: which worker processes have ended? The pipe can't tell, as tasks may pass it on."""
        known = {one.leases_number for one in self._worker_exits}
        workers = {number for number, leases in enumerate(self._all_leases) if leases.pid} - known
        exited = {number for number in workers if not self._runs(self._all_leases[number])}
        self._worker_exits += [WorkerExit(number, all_of_it=False) for number in sorted(exited)]
        self._ended = not workers - exited

    def _runs(self, leases: SharedLeases) -> bool:
        """One that was killed for hanging runs no task any more, even if it does not end."""
        return leases.is_alive() and leases.pid not in self._hung.reasons

    def _keep(self) -> None:
        """Renew three times per lease, and soon again what a transaction has locked."""
        self._recall()
        busy = self._renew()
        moment = time.monotonic()
        if moment - self._renewed_at >= self._lease.total_seconds() * RENEWED_EVERY:
            self._let_claim_expired(moment)
        period = self._lease.total_seconds() / 3 * random.uniform(0.9, 1.0)  # noqa: S311
        self._renew_at = moment + (min(period / 3, RETRY_LOCKED) if busy else period)

    def _renew(self) -> bool:
        """Returns whether some are busy. It is sent even if nothing is held: that shows that renewals go through."""
        began_at = lease_clock()
        entries = [(leases, entry) for leases in self._all_leases for entry in leases.entries()]
        held = {(entry.id, entry.token) for _, entry in entries} | self._releases.held()
        renewed = self._store.renew(list(held), self._lease)
        for leases, entry in entries:
            if (entry.id, entry.token) in renewed.lost:
                leases.report_lost(entry)
        behind = [leases for leases, entry in entries if (entry.id, entry.token) in renewed.busy]
        for leases in self._all_leases:
            if leases not in behind:
                leases.renewed(began_at)
        self._releases.lost(renewed.lost)
        return bool(renewed.busy)

    def _let_claim_expired(self, moment: float) -> None:
        """Workers may claim expired leases only while renewals have gone through without interruption.

        After an outage, or a transaction that held SQLite's only write lock for longer than a lease, all keepers get
        the time to renew first.
        """
        half = self._lease.total_seconds() / 2
        if moment - self._renewed_at <= half:
            for leases in self._all_leases:
                leases.let_claim_expired(half)
        self._renewed_at = moment

    def _recall(self) -> None:
        """Release what a worker whose loop is silent has not started: it starts nothing.

        What it had started may be the reason (a call into C that holds the GIL), and keeps its lease.
        """
        for leases in self._all_leases:
            if leases.silent_for() > max(SILENCE, self._lease.total_seconds()):
                waiting = [e for e in leases.entries() if not e.started and not leases.is_lost(e.slot, e.token)]
                self._releases.release([entry for entry in waiting if leases.take_away(entry)])

    def _release_exited(self) -> None:
        """Release what dead workers held, and tell the supervisor that their shared leases may be used again."""
        while self._worker_exits:
            worker_exit = self._worker_exits[0]
            leases = self._all_leases[worker_exit.leases_number]
            reason = worker_exit.reason or self._hung.reasons.get(leases.pid, "")
            if not self._releases.release_all_of(leases, all_of_it=worker_exit.all_of_it, reason=reason):
                return
            self._registration.deregister(leases)
            self._hung.reasons.pop(leases.pid, None)
            leases.clear()
            self._worker_exits.pop(0)
            with suppress(OSError):  # the supervisor is gone too
                self._supervisor.send(worker_exit)

    def _prune(self) -> None:
        retention = get_settings().RETENTION
        if time.monotonic() < self._prune_at:
            return
        pause_at = time.monotonic() + PRUNE_FOR
        try:
            forget_unused(self._store.database)
            while retention is not None and self._store.prune(retention, PRUNE_ROWS) == PRUNE_ROWS:
                if time.monotonic() >= pause_at:
                    return  # it goes on in the next turn, which renews first if that is due
            if self._rounds.go_on(pause_at):
                return
        except Error as error:  # another transaction has locked the table
            self._tell("History is not pruned", error, PRUNE_EVERY)
        self._prune_at = time.monotonic() + PRUNE_EVERY

    def _maintain_partitions(self) -> None:
        """One in a minute. What it can't do is tried again, ever later: ends of messages wait half a second while it
        waits for a long reader.
        """
        if time.monotonic() < self._partition_at:
            return
        try:
            self._store.maintain_partitions(get_settings().RETENTION)
            self._partition_pause = PRUNE_EVERY
        except Error as error:
            least, most = REFUSED_PAUSES if isinstance(error, ProgrammingError) else (0.0, LONGEST_PAUSE)
            pause = random.uniform(1.5, 2.5) * self._partition_pause  # noqa: S311
            self._partition_pause = min(most, max(least, pause))
            self._tell("The partitions of the history are left as they are", error, self._partition_pause)
        finally:
            self._partition_at = time.monotonic() + self._partition_pause

    def _tell(self, what: str, error: Error, pause: float) -> None:
        """Raises the error if the database is away."""
        connection = connections[self._store.alias]
        if connection.connection is None or not connection.is_usable():
            raise error
        logger.warning(
            "%s: %s. Next try in %.0f s.", what, str(error).strip() or repr(error), pause,
            extra={"pid": os.getpid()},
        )  # fmt: skip

    def _sweep(self) -> None:
        began = time.monotonic()
        if began < self._sweep_at:
            return
        self._sweeping.go_on(began + TURN)
        ended = time.monotonic()
        self._sweep_at = ended + max(SWEEP_EVERY, SWEEP_SHARE * (ended - began))
