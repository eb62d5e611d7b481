"""One worker process: claim, dispatch, settle, wait.

The loop only moves values. The pool runs tasks, the lookout knows what is due, the store keeps the promises. What has
ended and the next claim travel in one tick.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import DataError, Error, IntegrityError, connections

from delayedq import signals
from delayedq.cron.definitions import definitions
from delayedq.store.protocol import GiveBack
from delayedq.worker.beat import Beat
from delayedq.worker.inbox import Inbox
from delayedq.worker.lanes import Lanes
from delayedq.worker.ledger import Ledger
from delayedq.worker.lookout import Lookout
from delayedq.worker.pace import BATCH, Pace
from delayedq.worker.pool import ASYNC_LIMIT, Pool
from delayedq.worker.transitions import announce, decision, transition
from delayedq.worker.waiter import RECONNECTING, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from delayedq.store.protocol import Claimed, Lane, Settled, Store
    from delayedq.worker.executor import Ended

logger = logging.getLogger("delayedq")

#: The loop turns at least so often, for the lease keeper to see.
BEAT = 3.0
#: What was claimed ahead and has not moved for so long is given back.
STALL = 1.0
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


class Loop:
    def __init__(self, store: Store, options: Options, name: str, ledger: Ledger | None = None) -> None:
        self.name = name
        self._store = store
        self._options = options
        self._waiter = Waiter()
        self._lanes = Lanes()
        self._pool = Pool(options.threads, self._waiter.wake)
        self._pace = Pace(options.threads)
        self._inbox = Inbox(self._pool, ledger or Ledger(), name)
        self._lookout = Lookout(
            store, self._lanes, options.queues, options.poll_interval.total_seconds(), self._waiter.wake
        )
        self._beat = Beat(store, definitions()) if options.cron else None
        self._unsettled: list[Ended] = []
        self._outage = Outage(name)
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
        self._lookout.start()
        while not self._done():
            self._inbox.beat()
            self._step()
            self._waiter.wait(self._patience())
            if not alive():
                self.stop()
        self._lookout.stop()
        if self._beat:
            self._beat.stop()
        finished = not self._inbox.held
        if finished:
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
        if self._inbox.held:
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

    # One step: take what ended, then one tick

    def _step(self) -> None:
        if self._outage.lasts():
            return
        self._give_back_stalled()
        self._inbox.admit_suspect()
        if self._pool.worth_taking() == 0.0:
            self._take_ended()  # which makes room, so that one tick ends these and claims as many
        room = self._room()
        planned = self._lanes.plan() if room else []
        if planned:
            self._take_ended()
        if planned or self._settles_in() == 0.0:
            try:
                self._settle_and_claim(planned, room)
            except Error as error:
                self._outage.begin(error, self._unsettled)
                connections[self._store.alias].close()

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

    def _room(self) -> int:
        """How many messages to claim: none while enough are at hand, so that claims come in batches."""
        if self._stopping or self._inbox.suspects or self._pool.in_loop >= ASYNC_LIMIT:
            return 0
        ahead = self._pace.ahead()
        room = self._pool.size + ahead - self._pool.in_threads
        return min(room, BATCH, self._left()) if room > ahead // 2 else 0

    def _tick(self, planned: Sequence[Lane], room: int) -> None:
        ended, now = self._unsettled, time.monotonic()
        decided = [decision(one) for one in ended]
        transitions = [transition(one, what, now) for one, what in zip(ended, decided, strict=True)]
        tick = self._store.tick(transitions, planned, room, self._options.lease, self.name)
        lost = self._outage.really_lost(tick.settled.lost, self._store)
        self._outage.end()
        self._unsettled = [one for one in ended if one.attempt.id in tick.settled.busy]
        self._busy_until = now + BUSY_PAUSE if self._unsettled else 0.0
        for one, what in zip(ended, decided, strict=True):
            if one.attempt.id in tick.settled.busy:
                continue
            self._inbox.drop(one.attempt)
            if one.attempt.id in lost:
                signals.lease_lost.send_robust(one.attempt.kind, claimed=one.attempt.claimed)
            elif one.error is not None:
                announce(one, what)
        if planned:
            self._received(planned, tick.claimed, room)
        if tick.settled.superseded or any(isinstance(t, GiveBack) for t in transitions):
            self._lookout.ask_to_look()  # they are due again, now or soon

    def _settle_and_claim(self, planned: Sequence[Lane], room: int) -> None:
        try:
            self._tick(planned, room)
        except (DataError, IntegrityError):
            if not self._unsettled:
                raise
            self._settle_singly()

    def _settle_singly(self) -> None:
        """One of these ends can't be stored: settle the others, and leave that one to its lease."""
        waiting = deque(self._unsettled)
        kept: list[Ended] = []
        while waiting:
            self._unsettled = [waiting[0]]
            try:
                self._tick([], 0)
            except (DataError, IntegrityError):
                logger.exception("The end of %r can't be stored.", waiting[0].attempt)
                self._inbox.drop(waiting[0].attempt)
                self._unsettled = []
            except Error:
                self._unsettled = [*kept, *waiting]
                raise
            kept += self._unsettled
            waiting.popleft()
        self._unsettled = kept

    def _received(self, planned: Sequence[Lane], claimed: Sequence[Claimed], room: int) -> None:
        if claimed:
            self._claimed += len(claimed)
            self._progress = time.monotonic()
            self._looks_when_quiet = None
        if self._lanes.advance(planned, claimed, room):
            self._lookout.ask()
        in_loop = self._pool.in_loop
        for message in claimed:
            if refused := self._inbox.take(message):
                self._unsettled.append(refused)
        self._pace.came(claimed, self._pool.in_loop - in_loop)

    # Waiting

    def _patience(self) -> float:
        """How many seconds the loop may sleep if nobody wakes it."""
        if self._outage.lasts():
            return min(self._outage.rest(), max(0.0, self._stop_by - time.monotonic()))
        limits = [
            min(BEAT, self._options.poll_interval.total_seconds()),
            self._stop_by - time.monotonic(),
            self._pool.enforce_timeouts(),
            self._pool.worth_taking(),
            self._progress + STALL - time.monotonic() if self._pool.waiting() else None,
            0.0 if self._inbox.can_admit() else self._settles_in(),
            self._lanes.due_in() if self._room() else None,
        ]
        return max(0.0, min(limit for limit in limits if limit is not None))


class Outage:
    """While the database is away: when to try again, and which acks may have arrived without an answer."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._failures = 0
        self._retry_at = 0.0
        self._unsure: set[int] = set()

    def begin(self, error: Error, unsettled: Sequence[Ended]) -> None:
        """Wait a little longer each time, with jitter; what is unsettled stays so."""
        self._failures += 1
        self._unsure.update(ended.attempt.id for ended in unsettled)
        pause = RECONNECTING(self._failures).total_seconds()
        self._retry_at = time.monotonic() + pause
        logger.warning("Worker %s: %s. Next try in %.1f s.", self._worker, str(error).strip() or repr(error), pause)

    def lasts(self) -> bool:
        return time.monotonic() < self._retry_at

    def rest(self) -> float:
        return max(0.0, self._retry_at - time.monotonic())

    def really_lost(self, lost: frozenset[int], store: Store) -> frozenset[int]:
        """Without those that an earlier trip settled, though its answer never came."""
        unsure = lost & self._unsure
        try:
            return lost - store.finished(unsure) if unsure else lost
        except Error:
            return lost - unsure

    def end(self) -> None:
        self._failures = 0
        self._unsure.clear()
