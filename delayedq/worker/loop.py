"""One worker process: claim, dispatch, settle, wait.

The loop only moves values: claimed messages to the pool, results to the store thread. The poller knows what is due, the
store keeps the promises. Results and the next claim share one round trip.

    claim -> Attempt -> (pool) AttemptResult -> (store thread) decide() -> FinalOutcome or a retry -> settled
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, close_old_connections, connections
from django.utils import timezone

from delayedq import signals
from delayedq.conf import get_settings
from delayedq.core.lifecycle import Impossible, NotStarted
from delayedq.cron.definitions import definitions_in
from delayedq.exceptions import ArgumentsMismatch, UnknownTask
from delayedq.sql.priority import is_limited
from delayedq.store.claim_tokens import BUSY_PAUSE
from delayedq.store.registry import WorkerCommand
from delayedq.tasks.registry import unknown_task
from delayedq.worker.cron_beat import CronBeat
from delayedq.worker.lanes import Lanes
from delayedq.worker.logs import TaskLines
from delayedq.worker.options import ExitCode
from delayedq.worker.outage import Outage
from delayedq.worker.poller import Poller
from delayedq.worker.pool import ASYNC_LIMIT, FLUSH, Pool
from delayedq.worker.shared_leases import ClaimTimes, SharedLeases, lease_clock
from delayedq.worker.shortage import shortage
from delayedq.worker.silence import Silence
from delayedq.worker.store_thread import RoundTrip, StoreThread
from delayedq.worker.tally import Tally
from delayedq.worker.transitions import AttemptResult, send_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.core.lifecycle import Decision
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed
    from delayedq.worker.options import Options
from delayedq.worker.in_flight import InFlight

# Rolling deploys: a message that this version of the code can't run is left to workers of the other version.


logger = logging.getLogger("delayedq")

#: Seconds until a message is offered again that this worker can't run: as long as it is due by now, in these bounds.
SHORTEST_REFUSAL, LONGEST_REFUSAL = 1.0, 60.0


class _RefusedClaims(NamedTuple):
    """When this worker first refused a message of this kind (moments of `time.monotonic()`), and when last."""

    first: float
    last: float


class DeployGrace:
    """Belongs to the loop. A message is set aside if it has been due, and its kind been refused here, for `grace`."""

    def __init__(self, grace: timedelta, lanes: Lanes) -> None:
        self._grace = grace.total_seconds()
        #: Refusals that are this far apart are not of the same deploy.
        self._forget = max(self._grace, 2 * LONGEST_REFUSAL)
        self._lanes = lanes
        self._kinds: dict[str, _RefusedClaims] = {}
        self._left_alone: set[str] = set()

    def judge(self, result: AttemptResult) -> AttemptResult:
        """The result, or within the grace period one that gives the message back, uncharged and after a pause."""
        if not (isinstance(result.outcome, Impossible) and isinstance(result.error, UnknownTask | ArgumentsMismatch)):
            return result
        attempt = result.attempt
        refused_for, due_for = self._refused_for(attempt.kind), _age(attempt.scheduled_at_initially)
        if min(refused_for, due_for) >= self._grace:
            return result
        if refused_for == 0:
            logger.warning(
                "This worker can't run %s; it gives its messages back for %.0f s, as another version may. %s",
                attempt.kind, self._grace, result.error,
                extra={"pid": os.getpid(), "queue": attempt.queue, "message_id": attempt.id},
            )  # fmt: skip
        pause = min(LONGEST_REFUSAL, max(SHORTEST_REFUSAL, min(refused_for, due_for)))
        self._lanes.yield_to_others(attempt.queue, attempt.claimed.priority, pause)
        return result._replace(outcome=NotStarted(timedelta(seconds=pause)), started=None)

    def leave_alone(self, queue: str, kind: str) -> None:
        """Say once of a task with a channel or a limit that it is not known here: its messages are not claimed."""
        if kind in self._left_alone:
            return
        self._left_alone.add(kind)
        logger.warning(
            "This worker leaves messages of %s alone, which are due and have a channel or a limit. %s",
            kind, unknown_task(kind),
            extra={"pid": os.getpid(), "queue": queue},
        )  # fmt: skip

    def _refused_for(self, kind: str) -> float:
        """Seconds since the first refusal of this deploy."""
        moment = time.monotonic()
        refused = self._kinds.get(kind)
        first = moment if refused is None or moment - refused.last > self._forget else refused.first
        self._kinds[kind] = _RefusedClaims(first, moment)
        return moment - first


def _age(due_at: datetime) -> float:
    now = timezone.now() if due_at.tzinfo is None else datetime.now(UTC)  # a store without time zones has naive times
    return (now - due_at).total_seconds()


# How many messages a worker holds: enough that its threads never wait for the database, and no more.


#: A worker claims ahead what keeps its threads busy for 0.1 s.
HORIZON = 0.1

#: Messages in one claim at most, and bytes of payload among those claimed ahead. While the database works on one batch,
#: the threads work on the other.
BATCH, BATCH_BYTES = 512, 16_000_000

_WEIGHT = 0.05


class Prefetch:
    """Running means of how long a message occupies a thread, and of how large it is.

    Slow tasks are claimed one per free thread, so that no message waits in a busy process while another is idle.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._seconds = HORIZON
        self._bytes = 1_000.0

    def ran(self, results: Sequence[AttemptResult]) -> None:
        """Learn from these attempts how long a task takes."""
        occupied = [one.finished - one.started for one in results if one.started is not None and one.attempt.threaded]
        if occupied:
            self._seconds = _mean(self._seconds, sum(occupied) / len(occupied), len(occupied))

    def came(self, claimed: Sequence[Claimed], asynchronous: int) -> None:
        """Learn from a claim; `asynchronous` of its messages went to the event loop and occupy no thread."""
        if claimed:
            size = sum(len(message.payload) for message in claimed) / len(claimed)
            self._bytes = _mean(self._bytes, size, len(claimed))
            self._seconds = _mean(self._seconds, 0.0, asynchronous)

    def stalled(self) -> None:
        """Claimed messages waited too long for a thread: claim for free threads only, until tasks prove to be short."""
        self._seconds = max(self._seconds, 10 * HORIZON)

    def ahead(self) -> int:
        """How many messages to hold beyond those that run."""
        by_time = self._threads * HORIZON / max(self._seconds, 1e-6)
        return int(min(2 * BATCH, by_time, BATCH_BYTES / max(self._bytes, 1.0)))


def _mean(before: float, batch: float, count: int) -> float:
    kept: float = (1 - _WEIGHT) ** count
    return before * kept + batch * (1 - kept)


# Waiting that a thread or a signal handler can end.


class Waiter:
    """One thread waits, any thread or signal handler wakes it; a wake-up between two waits ends the next one at once.

    A bare lock that is free exactly while a wake-up is pending. Checking and sleeping are one operation, so no wake-up
    is missed in between, not even that of a signal handler in the waiting thread.
    """

    def __init__(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def wake(self) -> None:
        """End the wait in progress, or the next one."""
        with suppress(RuntimeError):  # a wake-up is pending already
            self._called.release()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until woken, or for `timeout` seconds; says whether it was woken."""
        return self._called.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


# Loop


#: Seconds between two heartbeats of the loop for the lease keeper, at most.
HEARTBEAT = 3.0

#: Seconds between two tries, at most, while the database is away.
LONGEST_PAUSE = 3.0

#: What was claimed ahead is given back if nothing was started or ended for 1 s.
STALL = 1.0

#: Seconds between two looks whether the process has memory and file descriptors left.
LOOK_EVERY = 1.0

#: Wait at most 5 ms for the store thread to send its statement before unpacking holds the GIL (+20 % throughput).
HEAD_START = 0.005

#: At the end, wait at most 1 s for the round trip that is under way, and for threads; the supervisor waits for 2 s.
LAST_ROUND_TRIP = 1.0


class Loop:
    """The main thread of a worker process. `name` is the worker's in leases, logs and the registry."""

    def __init__(self, store: Store, options: Options, name: str, leases: SharedLeases | None = None) -> None:
        self.name = name
        self._store = store
        self._options = options
        self._waiter = Waiter()
        self._lanes = Lanes(options.excluded)
        self._silence = Silence(f"Worker {name}", store.alias, options.lease.total_seconds())
        flush, write = 1 if options.acknowledge_each else FLUSH, self._silence.wait("a report of progress", times=2)
        self._pool = Pool(options.threads, self._waiter.wake, flush, write, self._silence.wait, self._silence.patience)
        self._prefetch = Prefetch(options.threads)
        self._deploy_grace = DeployGrace(get_settings().DEPLOY_GRACE, self._lanes)
        self._leases = leases or SharedLeases()
        self._in_flight = InFlight(self._pool, self._leases, name)
        self._outage = Outage(f"Worker {name}", longest_pause=LONGEST_PAUSE)
        where = store, self._lanes, options.queues, options.poll_interval.total_seconds()
        self._poller = Poller(
            *where, self._waiter.wake, self._outage, self._leases, self._silence.wait("a scan", times=4),
            self._pool.lacks_connection,
        )  # fmt: skip
        beat = definitions_in(store), self._outage, self._silence.wait("a beat of cron", times=4)
        self._beat = CronBeat(store, *beat) if options.cron else None
        self._unsettled: list[AttemptResult] = []
        self._store_thread = StoreThread(
            store,
            options.lease,
            name,
            self._waiter.wake,
            self._leases.remember_claim,
            self._serves,
            self._silence.wait("a claim", times=2),
        )
        self._round_trip: RoundTrip | None = None  #: The one in progress.
        self._busy_until, self._claimed, self._progress = 0.0, 0, time.monotonic()
        self._scans_when_quiet: int | None = None
        self._stop_by = float("inf")
        self._stuck = self._is_short = self._is_broken = False
        self._look_at = 0.0
        self._tally, self._lines = Tally(options.tallies, store.alias), TaskLines(wanted=options.lines)

    def _serves(self, queue: str) -> bool:
        return self._lanes.serves(queue) and (self._options.queues is None or queue in self._options.queues)

    def stop(self, within: float | None = None) -> None:
        """Claim no more, and let what runs finish, in the shutdown timeout or so many seconds. For signal handlers."""
        seconds = self._options.shutdown_timeout.total_seconds() if within is None else within
        self._stop_by = min(self._stop_by, time.monotonic() + seconds)
        self._waiter.wake()

    def run(self, supervisor: int | None = None) -> ExitCode:
        """Work until stopped, drained, or out of tasks; or until the parent is not `supervisor` (a pid) any more.

        Unless it returns DONE, RECYCLE or BROKEN, tasks are still running, and the process must end at once.
        """
        signals.worker_started.send_robust(self.name, worker=self.name)
        self._silence.start()
        if self._beat:
            self._beat.begin(wait=self._options.drain)
            connections[self._store.alias].close()
        self._store_thread.start()
        self._poller.start()
        while not self._done():
            if self._round_trip is None or time.monotonic() - self._round_trip.asked_at < HEARTBEAT:
                self._leases.heartbeat()
            else:
                self._leases.turn()
            self._step()
            if not self._done():  # also before the poller sees once more what no claim takes
                self._waiter.wait(self._patience())
            self._check(supervisor)
        give_up_at = time.monotonic() + LAST_ROUND_TRIP  # what waits for a silent database is left behind
        if self._round_trip is not None:
            self._let_go(self._round_trip)
        self._poller.stop(max(0.0, give_up_at - time.monotonic()))
        if self._beat:
            self._beat.stop(max(0.0, give_up_at - time.monotonic()))
        finished = not self._in_flight.held and self._round_trip is None
        self._tally.write()
        if finished:
            self._leases.farewell()
            self._store_thread.stop()
            self._pool.stop()
        self._silence.stop()
        connections[self._store.alias].close()
        signals.worker_stopped.send_robust(self.name, worker=self.name)
        if finished:
            if self._is_broken:
                return ExitCode.BROKEN
            is_replaced = self._stuck or self.exhausted or self._leases.asked is WorkerCommand.RESTART
            return ExitCode.RECYCLE if is_replaced else ExitCode.DONE
        return ExitCode.LOST_THREADS if self._pool.lost else ExitCode.GAVE_UP

    def _check(self, supervisor: int | None) -> None:
        """Stop if the supervisor is gone, if an operator asks for it, or if half of the threads are lost."""
        if supervisor is not None and os.getppid() != supervisor and not self._stopping:
            logger.warning(
                "Worker %s stops: its supervisor (pid %s) is gone.", self.name, supervisor, extra={"pid": os.getpid()}
            )
            self.stop()
        if self._leases.asked in {WorkerCommand.STOP, WorkerCommand.RESTART} and not self._stopping:
            asked = self._leases.asked
            logger.info("Worker %s ends: an operator asked to %s it.", self.name, asked, extra={"pid": os.getpid()})
            self.stop()
        self._leave_if_short()
        self._check_threads()
        lost = self._pool.find_lost(get_settings().HUNG_AFTER.total_seconds())
        self._leases.report(lost_threads=len(lost), deaf=self._poller.deaf, away=self._outage.is_on)
        self._tally.state(self._pool, self._in_flight.held, self._silence.abandoned)
        if not self._stopping and (2 * len(lost) >= self._pool.size or self._in_flight.is_alone(lost)) and lost:
            logger.error(
                "Worker %s is replaced: %s of its %s threads are lost.", self.name, len(lost), self._pool.size,
                extra={"pid": os.getpid(), "message_ids": [attempt.id for attempt in lost]},
            )  # fmt: skip
            self.stop()

    def _check_threads(self) -> None:
        """Without one of these nothing would be claimed any more, and nobody would notice: let what runs finish, in the
        shutdown timeout, and leave the rest to another process.
        """
        for thread in (self._poller, self._silence, self._beat):
            if thread is not None and not thread.is_alive() and not self._is_broken:
                self._is_broken = True
                logger.error(
                    "Worker %s is replaced: its thread %s has ended.", self.name, thread.name,
                    extra={"pid": os.getpid()},
                )  # fmt: skip
                self.stop()

    def _leave_if_short(self) -> None:
        """A process in which every task would fail claims no more, and ends when what it runs has ended."""
        if self._is_short or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY
        if what := shortage():
            self._is_short = True
            logger.error(
                "Worker %s is replaced: its process has no %s left.", self.name, what, extra={"pid": os.getpid()}
            )

    # When to end

    @property
    def _stopping(self) -> bool:
        return self._stop_by != float("inf")

    def _done(self) -> bool:
        if time.monotonic() >= self._stop_by:
            return True
        lost = len(self._pool.lost) if self._stopping or self._options.drain else 0  # what these run will not end
        if self._in_flight.held > lost or self._round_trip is not None:
            return False
        return self._stopping or self.exhausted or (self._options.drain and self._drained())

    @property
    def exhausted(self) -> bool:
        """True if it has claimed as many messages as it may (`max_tasks`), or lacks what tasks need."""
        return self._left() == 0

    def _left(self) -> int:
        """How many more messages this process may claim; at least BATCH means no limit."""
        if self._is_short:
            return 0
        return BATCH if self._options.max_tasks is None else self._options.max_tasks - self._claimed

    def _drained(self) -> bool:
        """True if a scan that began after the last message ended found nothing due.

        A scan may be under way already; only the second to complete is certain to have begun after that.
        """
        if self._scans_when_quiet is None:
            self._scans_when_quiet = self._lanes.scans
        if self._lanes.scans < self._scans_when_quiet + 2:
            self._poller.ask_to_scan()
            return False
        return self._lanes.nothing_is_due()

    # One step: what a round trip brought is handed out while the next one is under way

    def _step(self) -> None:
        round_trip = self._round_trip
        if round_trip is not None:
            if not round_trip.done.is_set():
                if self._pool.should_take():
                    self._take_ended()
                return
            self._absorb(round_trip)
        self._round_trip = None
        if not self._outage.lasts():
            self._round_trip = self._next_round_trip(len(round_trip.answer.claimed) if round_trip else 0)
        if self._round_trip is not None:
            self._store_thread.send(self._round_trip)
        if round_trip is not None:
            if self._round_trip is not None:
                self._round_trip.sending.wait(HEAD_START)
            self._unpack(round_trip)

    def _leave_if_stuck(self, error: Error) -> None:
        """End at once if only a new process can reach the database again; what this one holds is released."""
        if not self._stuck and self._store.database.is_stuck(error):
            self._stuck, self._stop_by = True, time.monotonic()
            logger.error("Worker %s can't write to its database any more (%s), and is replaced.", self.name, error)

    def _absorb(self, round_trip: RoundTrip) -> None:
        """Take over what the next round trip depends on."""
        busy = round_trip.answer.settled.busy
        if busy:
            self._unsettled = [result for result in round_trip.results if result.attempt.id in busy] + self._unsettled
            self._busy_until = round_trip.began_at + BUSY_PAUSE
        if round_trip.error is not None:
            if not isinstance(round_trip.error, Error):
                raise round_trip.error
            self._outage.begin(round_trip.error, lacks_connection=round_trip.lacks_connection)
            self._leave_if_stuck(round_trip.error)
            return
        self._outage.end()
        self._pool.round_trip_took(round_trip.ended_at - round_trip.began_at)
        if round_trip.answer.claimed:
            self._claimed += len(round_trip.answer.claimed)
            self._progress = time.monotonic()
            self._scans_when_quiet = None
        for queue, kind in round_trip.unknown:
            if self._serves(queue):
                self._deploy_grace.leave_alone(queue, kind)
        if round_trip.channels or round_trip.channels_due_in is not None:
            self._lanes.expect_channels(round_trip.channels_due_in)
        if round_trip.planned and self._lanes.advance(round_trip.planned, round_trip.answer.claimed, round_trip.room):
            self._poller.ask()

    def _next_round_trip(self, coming: int) -> RoundTrip | None:
        """None if there is nothing to claim or settle. `coming`: claimed messages that are about to be handed out."""
        self._give_back_stalled()
        if not coming:
            self._in_flight.admit_quarantined()
        if self._pool.should_take():
            self._take_ended()  # which makes room, so that one round trip ends these and claims as many
        room = self._room(coming)
        planned, channels = self._lanes.choose(has_room=self._ends_in_channels()) if room else ([], False)
        if planned or channels:
            self._take_ended()
        if not planned and not channels and self._settles_in() != 0.0:
            return None
        results, self._unsettled = self._unsettled, []
        may_continue = channels and not self._lanes.channels_are_due()
        return RoundTrip(results, planned, room, channels, may_continue, self._leases.may_claim_expired())

    def _ends_in_channels(self) -> bool:
        """Whether a message with a channel is to be settled now: the next of its channel is claimed with its end."""
        waits = self._settles_in() != 0.0 or not self._lanes.knows_channels()
        return not waits and any(is_limited(one.attempt.claimed.priority) for one in self._unsettled)

    def _unpack(self, round_trip: RoundTrip) -> None:
        concluded = round_trip.concluded()
        self._tally.round_trip(round_trip, concluded)
        self._lines.tell(concluded)
        for result, _ in concluded:
            self._in_flight.drop(result.attempt)
        in_event_loop = self._pool.in_event_loop
        claim = ClaimTimes(round_trip.claimed_at, self._options.lease.total_seconds())
        for message in round_trip.answer.claimed:
            if refused := self._in_flight.take(message, claim):
                self._unsettled.append(self._deploy_grace.judge(refused))
        claim.entered_at = lease_clock()
        self._end_claim(round_trip)
        self._prefetch.came(round_trip.answer.claimed, self._pool.in_event_loop - in_event_loop)
        if round_trip.brings_work(concluded):
            self._expect(concluded)
            self._poller.ask_to_scan()
        self._tell(round_trip, concluded)

    def _expect(self, concluded: Sequence[tuple[AttemptResult, Decision]]) -> None:
        """What is due again in a while; the scan may have to rest for longer."""
        for result, decided in concluded:
            if decided.outcome is None and decided.delay is not None:
                claimed = result.attempt.claimed
                self._lanes.expect(claimed.queue, claimed.priority, decided.delay)

    def _tell(self, round_trip: RoundTrip, concluded: Sequence[tuple[AttemptResult, Decision]]) -> None:
        """Send signals. Receivers may be slow: all that was claimed is in the shared leases by now, and is renewed."""
        told, lost = False, round_trip.answer.settled.lost
        for result, decided in concluded:
            if result.error is None and not lost:
                continue
            if result.attempt.id in lost:
                signals.lease_lost.send_robust(result.attempt.kind, claimed=result.attempt.claimed)
            elif result.error is not None and result.attempt.id not in round_trip.unstorable:
                send_signals(result, decided)
            else:
                continue
            told = True
        if told:
            close_old_connections()  # that a receiver may have opened in this thread

    def _let_go(self, round_trip: RoundTrip) -> None:
        """The shutdown timeout is over. What this round trip still claims is left to the lease keeper."""
        if not round_trip.done.wait(LAST_ROUND_TRIP):
            return
        self._round_trip = None
        for one, _ in round_trip.concluded():
            self._in_flight.drop(one.attempt)
        for message in round_trip.answer.claimed:
            self._in_flight.hold(message)
        self._end_claim(round_trip)

    def _end_claim(self, round_trip: RoundTrip) -> None:
        """What it claimed is in the shared leases; after an error, it may have claimed more than the answer says."""
        if round_trip.claims:
            end = self._leases.forget_claim if round_trip.error is None else self._leases.give_up_claim
            end(round_trip.token)

    def _settles_in(self) -> float | None:
        """Seconds until the unsettled results should be sent (again); None if there are none."""
        return max(0.0, self._busy_until - time.monotonic()) if self._unsettled else None

    def _take_ended(self) -> None:
        ended = self._pool.take_ended()
        if ended:
            self._progress = time.monotonic()
            self._prefetch.ran(ended)
            for one in ended:
                if one.settled is None:
                    self._unsettled.append(self._deploy_grace.judge(one))
                    continue
                self._in_flight.drop(one.attempt)  # exactly once: settled in one transaction with what its task did
                self._tally.committed(one)
                self._lines.tell([(one, None)])
                if one.settled.superseded or one.settled.offered:
                    self._poller.ask_to_scan()

    def _give_back_stalled(self) -> None:
        if self._stopping or self._is_short or time.monotonic() - self._progress > STALL:
            back = self._in_flight.take_back()
            if back:
                self._prefetch.stalled()
                self._unsettled += back
        self._unsettled += self._in_flight.put_off_quarantined()

    def _room(self, coming: int = 0) -> int:
        """How many messages to claim: 0 until half of the prefetched ones are gone, so that claims come in batches."""
        if self._stopping or self._in_flight.quarantining or self._leases.asked is WorkerCommand.QUIET:
            return 0
        if self._pool.in_event_loop + coming >= ASYNC_LIMIT:
            return 0
        ahead = self._prefetch.ahead()
        room = self._pool.size + ahead - self._pool.occupying() - coming
        slots = self._leases.capacity - self._in_flight.held - coming
        return max(0, min(room, BATCH, slots, self._left())) if room > ahead // 2 else 0

    def _patience(self) -> float:
        """Seconds that the loop may sleep if it is not woken."""
        limits = [
            min(HEARTBEAT, self._options.poll_interval.total_seconds()),
            self._stop_by - time.monotonic(),
            self._pool.enforce_timeouts(),
        ]
        if self._outage.lasts():
            limits.append(self._outage.rest())
        else:
            limits.append(self._pool.take_in())
            if self._round_trip is None:
                limits += [
                    self._progress + STALL - time.monotonic() if self._pool.waiting() else None,
                    0.0 if self._in_flight.can_admit() else self._settles_in(),
                    self._lanes.due_in() if self._room() else None,
                ]
        return max(0.0, min(limit for limit in limits if limit is not None))
