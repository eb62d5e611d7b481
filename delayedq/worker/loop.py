"""One worker process: claim, dispatch, settle, wait.

The loop only moves values. The pool runs tasks, the lookout knows what is due, the store keeps the promises. What has
ended and the next claim travel in one tick.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import Error, close_old_connections, connections

from delayedq import signals
from delayedq.cron.definitions import definitions
from delayedq.worker.beat import Beat
from delayedq.worker.courier import Courier, Trip
from delayedq.worker.inbox import Inbox
from delayedq.worker.lanes import Lanes
from delayedq.worker.ledger import Ledger
from delayedq.worker.lookout import Lookout
from delayedq.worker.outage import Outage
from delayedq.worker.pace import BATCH, Pace
from delayedq.worker.pool import ASYNC_LIMIT, FLUSH, Pool
from delayedq.worker.transitions import announce
from delayedq.worker.waiter import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from delayedq.core.lifecycle import Decision
    from delayedq.store.protocol import Settled, Store
    from delayedq.worker.executor import Ended

logger = logging.getLogger("delayedq")

#: The loop turns at least so often, for the lease keeper to see.
BEAT = 3.0
#: What was claimed ahead and has not moved for so long is given back.
STALL = 1.0
#: Before the loop takes the interpreter to itself, it waits so long for the courier to leave: a fifth more messages.
HEAD_START = 0.005
#: When its time is over, a worker waits so many seconds for the trip that is under way: the supervisor waits for two.
LAST_TRIP = 1.0
#: What somebody's open transaction has locked is settled after such pauses, if no other trip comes first.
BUSY_PAUSE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `run_workers` was told. Durations are timedeltas; `queues` None means all."""

    lease: timedelta
    poll_interval: timedelta
    shutdown_timeout: timedelta
    queues: tuple[str, ...] | None = None
    threads: int = 4
    drain: bool = False
    max_tasks: int | None = None
    cron: bool = True
    acknowledge_each: bool = False


class Loop:
    def __init__(self, store: Store, options: Options, name: str, ledger: Ledger | None = None) -> None:
        self.name = name
        self._store = store
        self._options = options
        self._waiter = Waiter()
        self._lanes = Lanes()
        self._pool = Pool(options.threads, self._waiter.wake, flush=1 if options.acknowledge_each else FLUSH)
        self._pace = Pace(options.threads)
        self._inbox = Inbox(self._pool, ledger or Ledger(), name)
        self._lookout = Lookout(
            store, self._lanes, options.queues, options.poll_interval.total_seconds(), self._waiter.wake
        )
        self._beat = Beat(store, definitions()) if options.cron else None
        self._unsettled: list[Ended] = []
        self._outage = Outage(name)
        self._courier = Courier(store, self._outage, options.lease, name, self._waiter.wake)
        #: The one that is under way.
        self._trip: Trip | None = None
        self._busy_until = 0.0
        self._claimed = 0
        self._progress = time.monotonic()
        self._looks_when_quiet: int | None = None
        self._stop_by = float("inf")

    def stop(self) -> None:
        """Claim no more, and let what runs finish. Safe in a signal handler."""
        if not self._stopping:
            self._stop_by = time.monotonic() + self._options.shutdown_timeout.total_seconds()
        self._waiter.wake()

    def run(self, alive: Callable[[], bool] = lambda: True) -> bool:
        """Work until stopped, drained, or out of tasks; `alive` False stops it too.

        Returns False if tasks were still running when the shutdown timeout was over: the process must end at once.
        """
        signals.worker_started.send_robust(self.name, worker=self.name)
        if self._beat:
            self._beat.begin()
            connections[self._store.alias].close()
        self._courier.start()
        self._lookout.start()
        while not self._done():
            if self._trip is None or time.monotonic() - self._trip.asked_at < BEAT:
                self._inbox.beat()
            self._step()
            self._waiter.wait(self._patience())
            if not alive():
                self.stop()
        self._lookout.stop()
        if self._beat:
            self._beat.stop()
        if self._trip is not None:
            self._let_go(self._trip)
        finished = not self._inbox.held and self._trip is None
        if finished:
            self._courier.stop()
            self._pool.stop()
        connections[self._store.alias].close()
        signals.worker_stopped.send_robust(self.name, worker=self.name)
        return finished

    # When to end

    @property
    def _stopping(self) -> bool:
        return self._stop_by != float("inf")

    def _done(self) -> bool:
        if time.monotonic() >= self._stop_by:
            return True
        if self._inbox.held or self._trip is not None:
            return False
        return self._stopping or self.exhausted or (self._options.drain and self._drained())

    @property
    def exhausted(self) -> bool:
        """Has it run as many messages as it may?"""
        return self._left() == 0

    def _left(self) -> int:
        """How many more messages this process may run."""
        limit = self._options.max_tasks
        return BATCH if limit is None else limit - self._claimed

    def _drained(self) -> bool:
        """Did a look that began after the last message ended find nothing due? The next but one surely did."""
        if self._looks_when_quiet is None:
            self._looks_when_quiet = self._lanes.looks
        if self._lanes.looks < self._looks_when_quiet + 2:
            self._lookout.ask_to_look()
            return False
        due_in = self._lanes.due_in()
        return due_in is None or due_in > 0

    # One step: what a trip brought is handed out while the next one is under way

    def _step(self) -> None:
        trip = self._trip
        if trip is not None:
            if not trip.back.is_set():
                if self._pool.worth_taking() == 0.0:
                    self._take_ended()
                return
            self._came_back(trip)
        self._trip = None
        if not self._outage.lasts():
            self._trip = self._next_trip(len(trip.tick.claimed) if trip else 0)
        if self._trip is not None:
            self._courier.send(self._trip)
        if trip is not None:
            if self._trip is not None:
                self._trip.under_way.wait(HEAD_START)
            self._unpack(trip)

    def _came_back(self, trip: Trip) -> None:
        """What the next trip must know of this one."""
        busy = trip.tick.settled.busy
        if busy:
            self._unsettled = [one for one in trip.ended if one.attempt.id in busy] + self._unsettled
            self._busy_until = trip.began + BUSY_PAUSE
        if trip.error is not None:
            if not isinstance(trip.error, Error):
                raise trip.error
            self._outage.begin(trip.error, busy)
            return
        self._outage.end()
        self._pool.trip_took(trip.ended_at - trip.began)
        if trip.tick.claimed:
            self._claimed += len(trip.tick.claimed)
            self._progress = time.monotonic()
            self._looks_when_quiet = None
        if trip.planned and self._lanes.advance(trip.planned, trip.tick.claimed, trip.room):
            self._lookout.ask()

    def _next_trip(self, coming: int) -> Trip | None:
        """None if there is no reason for one. So many messages are about to be handed out."""
        self._give_back_stalled()
        if not coming:
            self._inbox.admit_suspect()
        if self._pool.worth_taking() == 0.0:
            self._take_ended()  # which makes room, so that one trip ends these and claims as many
        room = self._room(coming)
        planned = self._lanes.plan() if room else []
        if planned:
            self._take_ended()
        if not planned and self._settles_in() != 0.0:
            return None
        ended, self._unsettled = self._unsettled, []
        return Trip(ended, planned, room)

    def _unpack(self, trip: Trip) -> None:
        ended = trip.concluded()
        for one, _ in ended:
            self._inbox.drop(one.attempt)
        in_loop = self._pool.in_loop
        for message in trip.tick.claimed:
            if refused := self._inbox.take(message):
                self._unsettled.append(refused)
        self._pace.came(trip.tick.claimed, self._pool.in_loop - in_loop)
        if trip.tick.settled.superseded or any(what.ending is None for _, what in ended):
            self._lookout.ask_to_look()  # they are due again, now or soon
        self._tell(trip, ended)

    def _tell(self, trip: Trip, ended: Sequence[tuple[Ended, Decision]]) -> None:
        """Those who listen may take their time: whatever was brought is in the ledger before."""
        told = False
        for one, what in ended:
            if one.attempt.id in trip.tick.settled.lost:
                signals.lease_lost.send_robust(one.attempt.kind, claimed=one.attempt.claimed)
            elif one.error is not None and one.attempt.id not in trip.unstorable:
                announce(one, what)
            else:
                continue
            told = True
        if told:
            close_old_connections()  # that a receiver may have opened in this thread

    def _let_go(self, trip: Trip) -> None:
        """The time to stop is over. What this trip still brings is left to the lease keeper."""
        if not trip.back.wait(LAST_TRIP):
            return
        self._trip = None
        for one, _ in trip.concluded():
            self._inbox.drop(one.attempt)
        for message in trip.tick.claimed:
            self._inbox.hold(message)

    def _settles_in(self) -> float | None:
        """Seconds until what is unsettled should be tried (again); None if nothing is."""
        return max(0.0, self._busy_until - time.monotonic()) if self._unsettled else None

    def _take_ended(self) -> None:
        ended = self._pool.take_ended()
        if ended:
            self._progress = time.monotonic()
            self._pace.ran(ended)
            for one in ended:
                if one.settled is None:
                    self._unsettled.append(one)
                else:
                    self._conclude(one, one.settled)

    def _conclude(self, ended: Ended, settled: Settled) -> None:
        """It was settled in one transaction with what its task did."""
        self._inbox.drop(ended.attempt)
        if settled.superseded:
            self._lookout.ask_to_look()

    def _give_back_stalled(self) -> None:
        if self._stopping or time.monotonic() - self._progress > STALL:
            back = self._inbox.take_back()
            if back:
                self._pace.stalled()
                self._unsettled += back
        self._unsettled += self._inbox.put_off_suspects()

    def _room(self, coming: int = 0) -> int:
        """How many messages to claim: none while enough are at hand, so that claims come in batches."""
        if self._stopping or self._inbox.suspecting or self._pool.in_loop + coming >= ASYNC_LIMIT:
            return 0
        ahead = self._pace.ahead()
        room = self._pool.size + ahead - self._pool.occupying() - coming
        return min(room, BATCH, self._left()) if room > ahead // 2 else 0

    # Waiting

    def _patience(self) -> float:
        """How many seconds the loop may sleep if nobody wakes it."""
        limits = [
            min(BEAT, self._options.poll_interval.total_seconds()),
            self._stop_by - time.monotonic(),
            self._pool.enforce_timeouts(),
        ]
        if self._outage.lasts():
            limits.append(self._outage.rest())
        else:
            limits.append(self._pool.worth_taking())
            if self._trip is None:
                limits += [
                    self._progress + STALL - time.monotonic() if self._pool.waiting() else None,
                    0.0 if self._inbox.can_admit() else self._settles_in(),
                    self._lanes.due_in() if self._room() else None,
                ]
        return max(0.0, min(limit for limit in limits if limit is not None))
