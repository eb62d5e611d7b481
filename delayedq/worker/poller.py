"""The thread that finds out which lanes there are and when they are due, so that no claim waits for a scan.

It hears of offers (NOTIFY on PostgreSQL, the data version on SQLite) and wakes the loop. It has its own connections.

A *peek* reads from the watermarks of the known lanes and is always short: it tells the idle loop how long to sleep. A
*scan* reads from the beginning, and so sees new lanes, late commits and expired leases; rows that are dead but not
vacuumed yet make it slow, so periodic scans take at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from bisect import insort
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.limits.channels import Channels
from delayedq.limits.claims import TAKEN
from delayedq.sql.priority import is_limited
from delayedq.store.database import NOTIFY_WAIT, WakeUpPipe
from delayedq.store.protocol import BARE, Lane
from delayedq.worker.sessions import keep_no_query_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.database import Listener
    from delayedq.store.protocol import Claimed, LaneHead
    from delayedq.worker.outage import Outage
    from delayedq.worker.shared_leases import SharedLeases

logger = logging.getLogger("delayedq")

#: Seconds between the periodic scans of a busy worker, for what its watermarks may have missed.
BUSY_INTERVAL = 1.0

#: After a full scan of duration t, wait at least 20 t for the next periodic scan (<= 5 % of time), 5 t if one is
#: requested.
ROUTINE_REST, WANTED_REST = 20, 5

#: After a NOTIFY the loop claims from the lanes it knows before the scan begins.
YIELD = 0.005

#: Seconds that a listener has to hear its own notification, and the poll interval of a worker whose listener is deaf.
PROOF_TIMEOUT, DEAF_INTERVAL = 5.0, 0.5

#: Seconds until it listens again after it got no connection for that, or has spared it for others; twice as many after
#: each failure, as a connection to an address that does not answer takes long, and nothing is scanned meanwhile.
LISTEN_AGAIN, LISTEN_AGAIN_AT_LAST = 30.0, 600.0

#: The connection of LISTEN is spared if others have none for 1 s. If they have none yet, it looks again after 0.1 s.
SPARE_AFTER, LOOK_AGAIN = 1.0, 0.1

OTHERS_LACK = "other parts of this worker have no connection to the database"

#: Seconds before the next try after an error that is not the database's.
UNEXPECTED_PAUSE = 1.0


class Poller(threading.Thread):
    """Updates `lanes`, and calls `wake` after each scan and peek. `queues` None: all; `poll_interval` in seconds."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        queues: Collection[str] | None,
        poll_interval: float,
        wake: Callable[[], None],
        outage: Outage,
        leases: SharedLeases | None = None,
        wait: AbstractContextManager[None] | None = None,
        tasks_lack: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name="delayedq-poller", daemon=True)
        self._store = store
        self._lanes = lanes
        self._queues = queues
        self._poll_interval = poll_interval
        self._wake = wake
        self._outage = outage
        self._leases = leases
        self._wait = wait or nullcontext()
        self._tasks_lack = tasks_lack
        self._pipe = WakeUpPipe()
        self._stopping = False
        #: True if the listener did not hear its own notification within PROOF_TIMEOUT, or has no connection.
        self.deaf = False
        self._listener: Listener | None = None
        # Moments of `time.monotonic()`. By this one the listener must have heard itself; infinity: it is not asked.
        self._proof_ends_at = float("inf")
        self._next_peek_at = float("inf")
        #: When to listen again, and since when other parts of this worker have no connection.
        self._listen_at, self._others_lack_since = float("inf"), float("inf")
        self._scanned_at = 0.0
        self._listen_pause = LISTEN_AGAIN
        #: The next scan that is planned; no scan may begin before `_may_scan_at`, when the last one has rested enough.
        self._next_scan_at = 0.0
        self._may_scan_at = 0.0
        #: A scan that begins before this moment is followed by another: a NOTIFY may have been skipped.
        self._rescan_before = 0.0

    def ask(self) -> None:
        """Request a peek, after which the loop is woken; a scan that is due within 5 ms will do too."""
        if self._next_scan_at > time.monotonic() + YIELD:
            self._next_peek_at = 0.0
            self._pipe.wake()

    def ask_to_scan(self) -> None:
        """Request a scan as soon as its rest allows, after which the loop is woken."""
        if self._next_scan_at > self._may_scan_at:
            self._next_scan_at = self._may_scan_at
            self._pipe.wake()

    def stop(self, patience: float | None = None) -> None:
        """End the thread, and wait for it, `patience` seconds at most: it may wait for a database that is silent."""
        self._stopping = True
        self._pipe.wake()
        self.join(patience)
        if not self.is_alive():
            self._pipe.close()

    def run(self) -> None:
        keep_no_query_log(self._store.alias)
        while not self._stopping:
            try:
                self._watch()
            except Exception as error:
                if not isinstance(error, Error):
                    logger.exception("The poller was interrupted; it tries again.", extra={"pid": os.getpid()})
                pause = self._outage.begin(error, "poller") if isinstance(error, Error) else UNEXPECTED_PAUSE
                connections[self._store.alias].close()
                self._pipe.wait(pause)
        connections[self._store.alias].close()

    def _watch(self) -> None:
        with self._wait:
            connections[self._store.alias].ensure_connection()  # before LISTEN, which is dispensable
        self._next_scan_at = self._listen_at = 0.0  # offers until now were not heard
        try:
            while not self._stopping:
                self._listen_or_spare()
                wake_at = min(self._next_scan_at, self._next_peek_at, self._proof_ends_at, self._listen_at)
                self._pipe.wait(max(0.0, wake_at - time.monotonic()), self._listener)
                if self._listener is not None:
                    self._hear(self._listener)
                with self._wait:
                    self._scan_or_peek()
        finally:
            self._stop_listening()

    def _listen_or_spare(self) -> None:
        """Listen, unless the loop, cron, the keeper or tasks had no connection for a while: then it does without.

        Not during an outage, when this thread has none either: then it would be deaf for longer than that.
        """
        moment = time.monotonic()
        if not (
            self._outage.another_lacks_connection("poller")
            or (self._leases is not None and self._leases.keeper_lacks_connection)
            or self._tasks_lack()
        ):
            self._others_lack_since = float("inf")
        elif self._others_lack_since == float("inf"):
            self._others_lack_since = moment
        lack_for = moment - self._others_lack_since
        if self._listener is not None:
            if lack_for > SPARE_AFTER and self._scanned_at > self._others_lack_since:
                self._stop_listening()
                self._listen_at = moment + LISTEN_AGAIN
                self._go_without(OTHERS_LACK)
        elif moment >= self._listen_at:
            if lack_for < SPARE_AFTER:
                self._listen()
                return
            self._listen_at = moment + LOOK_AGAIN
            if lack_for > PROOF_TIMEOUT:
                self._go_without(OTHERS_LACK)

    def _listen(self) -> None:
        self._listen_at = float("inf")
        try:
            with self._wait:
                self._listener = self._store.listener()
        except Error as error:
            self._listen_at = time.monotonic() + self._listen_pause
            self._listen_pause = min(2 * self._listen_pause, LISTEN_AGAIN_AT_LAST)
            self._go_without(f"it has no connection of its own for LISTEN ({str(error).strip()})")
            return
        with self._wait:
            self._listener.begin_proof()
        self._listen_pause = LISTEN_AGAIN
        self._proof_ends_at = time.monotonic() + PROOF_TIMEOUT
        self._next_scan_at = 0.0  # offers until now were not heard

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener, self._proof_ends_at = None, float("inf")

    def _go_without(self, reason: str) -> None:
        if not self.deaf:
            self._become_deaf(f"The listener is deaf: {reason}.")

    def _hear(self, listener: Listener) -> None:
        with self._wait:  # MySQL's asks for it
            heard = listener.heard()
        self._judge(listener)
        if listener.heard_waiting:
            listener.heard_waiting = False
            self._store.somebody_waits()
        if listener.heard_stopped:
            listener.heard_stopped = False
            with self._wait:
                self._find_stopped()
        if heard:
            moment = time.monotonic()
            self._rescan_before = moment + NOTIFY_WAIT
            wait = YIELD if self._lanes.hint() else 0.0
            self._next_scan_at = min(self._next_scan_at, max(self._may_scan_at, moment + wait))
            self._wake()

    def _find_stopped(self) -> None:
        """Tell the attempts whose messages have ended; the lease keeper would find it out by their next renewal."""
        running = [entry for entry in self._leases.entries() if entry.started] if self._leases else []
        held = self._store.tokens([entry.id for entry in running]) if running else {}
        for entry in running:
            if held.get(entry.id) != entry.token:
                self._leases.report_lost(entry)  # type: ignore[union-attr]
        self._wake()

    def _judge(self, listener: Listener) -> None:
        """Say so if the listener is deaf, or hears again; while it is deaf, scans are more frequent."""
        deaf = not listener.proved and (self.deaf or time.monotonic() >= self._proof_ends_at)
        if deaf or listener.proved:
            self._proof_ends_at = float("inf")
        if deaf is self.deaf or not (deaf or listener.proved):
            return
        if deaf:
            self._become_deaf(
                "The listener is deaf: it did not hear its own notification, as behind a pooler in transaction mode. "
                "Set DELAYEDQ['LISTENER_DSN'] to the address of PostgreSQL."
            )
        else:
            self.deaf = False
            logger.warning("The listener hears notifications again.", extra={"pid": os.getpid()})

    def _become_deaf(self, why: str) -> None:
        self.deaf = True
        self._next_scan_at = min(self._next_scan_at, self._may_scan_at)
        logger.warning("%s Messages wait up to %.1f s for a scan.", why, self._interval(), extra={"pid": os.getpid()})

    def _interval(self) -> float:
        """Seconds between two periodic scans of an idle worker."""
        listens = self._listener is not None and not self.deaf
        return self._poll_interval if listens else min(self._poll_interval, DEAF_INTERVAL)

    def _scan_or_peek(self) -> None:
        moment = time.monotonic()
        if moment >= self._next_scan_at:
            self._scan(moment)
        elif moment >= self._next_peek_at:
            self._next_peek_at = float("inf")
            known = self._lanes.known()
            self._lanes.peeked(self._store.peek(known), time.monotonic())
            self._wake()

    def _scan(self, moment: float) -> None:
        self._next_peek_at = self._next_scan_at = float("inf")
        heads = [head for head in self._store.scan(self._queues) if self._lanes.serves(head.queue)]
        seen = self._scanned_at = time.monotonic()
        took = seen - moment
        is_first = not self._lanes.scans
        self._lanes.scanned(heads, seen)
        if is_first and any(
            Channels.of(self._store).coming()
        ):  # workers before may have left something, but no message
            self._lanes.expect_channels(0.0)
        self._outage.end("poller")
        busy = any(head.due_in <= 0 for head in heads)
        self._may_scan_at = seen + WANTED_REST * took
        asked = self._next_scan_at < float("inf")  # during this scan
        self._next_scan_at = seen + max(ROUTINE_REST * took, BUSY_INTERVAL if busy else self._interval())
        if asked:
            self._next_scan_at = min(self._next_scan_at, self._may_scan_at)
        elif moment < self._rescan_before:
            self._next_scan_at = min(self._next_scan_at, max(self._may_scan_at, self._rescan_before))
        self._wake()


# What a worker knows of the queues it serves: their lanes, when each is due next, and how far it has claimed.
#
# A lane is one queue at one priority. Its *watermark* is the due time up to which the worker has claimed. A claim
# starts there, so it does not read again the rows it took, which stay in the index until vacuum may remove them. While
# another session holds a transaction open, vacuum can't, and claims without a watermark get slower with each message.
# The watermark is a hint only: `scan` finds what it would miss (late commits, times moved back, expired leases) and
# lowers it.


#: A transaction that commits at most 250 ms after its offer is still found without a scan.
SLACK = timedelta(milliseconds=250)

#: When a message is due again that a worker gave back because it can't run it, others have 0.25 s to claim it first.
HANDICAP = 0.25

#: Such moments that are closer together are one.
GRAIN = 0.02

#: At most 16 empty lanes are remembered: after a wake-up the loop claims from them without waiting for a scan.
REMEMBERED = 16


@dataclass(slots=True)
class _KnownLane:
    watermark: datetime
    #: The moment of `time.monotonic()` at which its next message is due.
    due: float
    #: Claims in a row that found nothing.
    misses: int = 0
    #: The due time of the last message that a claim took.
    reached: datetime | None = None
    #: Moments at which messages are due again that other workers shall claim, in order.
    yields_at: list[float] = field(default_factory=list)

    def advance(self, scheduled_at: datetime, *, has_more: bool) -> None:
        """Messages up to that time were claimed. With a backlog (`has_more`) the watermark drops its 250 ms slack: late
        commits wait for the next scan, and claims do not re-read rows just taken.
        """
        self.misses = 0
        watermark = _before(scheduled_at, SLACK)
        if has_more and self.reached is not None:
            watermark = max(watermark, min(self.reached, scheduled_at))
        self.watermark, self.reached = max(self.watermark, watermark), scheduled_at

    def rest(self) -> None:
        """There is nothing to claim."""
        self.due, self.misses = float("inf"), 0

    def expect(self, moment: float, due_in: float) -> None:
        """Due in that many seconds. After claims in vain (its rows are locked), after a growing pause."""
        if due_in > 0:
            self.due, self.misses = moment + due_in, 0
        else:
            pause = 0.0 if self.misses <= 1 else min(1.0, 0.025 * 2 ** min(self.misses, 10))
            self.due = moment + max(due_in, pause)

    def yield_at(self, moment: float, now: float) -> None:
        """Let other workers go first when that moment comes."""
        coming = [one for one in self.yields_at if one + HANDICAP > now]
        if all(abs(one - moment) >= GRAIN for one in coming):
            insort(coming, moment)
        self.yields_at = coming

    def claim_at(self, moment: float) -> float:
        """When to claim from it, if it is `moment` now; infinity: not as far as is known."""
        due = max(self.due, moment)
        for first in self.yields_at:
            if first <= due < first + HANDICAP:
                due = first + HANDICAP
        return due


class Lanes:
    """Shared by the loop, which plans and advances, and the poller, which scans and peeks.

    `excluded`: queues that this worker does not serve.
    """

    def __init__(self, excluded: Collection[str] = ()) -> None:
        self._excluded = excluded
        self._lanes: dict[tuple[str, int], _KnownLane] = {}
        self._lock = Lock()
        #: The moment (monotonic) at which to claim from channels; None: as far as is known, no message has one.
        self._channels_due: float | None = None
        #: Number of scans so far.
        self.scans = 0

    def serves(self, queue: str) -> bool:
        """Bare queues are polled by the application's own code."""
        return BARE not in queue and queue not in self._excluded

    def scanned(self, heads: Sequence[LaneHead], moment: float) -> None:
        """Take over what a scan at `moment` (monotonic) found. Lanes it did not find are empty or paused."""
        with self._lock:
            before, self._lanes = self._lanes, {}
            limited = [moment + max(0.0, head.due_in) for head in heads if is_limited(head.priority)]
            if limited:
                self._channels_due = min(limited if self._channels_due is None else [*limited, self._channels_due])
            for head in (head for head in heads if not is_limited(head.priority)):
                name = head.queue, head.priority
                gone = before.pop(name, None)
                self._lanes[name] = known = _KnownLane(_watermark(head), 0.0, gone.misses if gone else 0)
                known.yields_at = gone.yields_at if gone else []
                known.expect(moment, head.due_in)
            for name, known in islice(before.items(), REMEMBERED):  # the latest come first
                self._lanes[name] = known
                known.rest()
            self.scans += 1

    def known(self) -> list[Lane]:
        """All known lanes with their watermarks."""
        with self._lock:
            return [Lane(*name, known.watermark) for name, known in self._lanes.items()]

    def peeked(self, heads: Sequence[LaneHead], moment: float) -> None:
        """Take over when known lanes are due next, as a peek at `moment` found; their watermarks stay."""
        due_in = {(s.queue, s.priority): s.due_in for s in heads}
        with self._lock:
            for name, known in self._lanes.items():
                if name in due_in:
                    known.expect(moment, due_in[name])
                else:
                    known.rest()

    def hint(self) -> bool:
        """Something was offered: any lane may be due. Returns whether at least one lane is known."""
        with self._lock:
            for known in self._lanes.values():
                known.due = 0.0
            if self._channels_due is not None:
                self._channels_due = 0.0
            return bool(self._lanes) or self._channels_due is not None

    def yield_to_others(self, queue: str, priority: int, seconds: float) -> None:
        """A message of this lane is due again in `seconds`: let other workers go first then."""
        now = time.monotonic()
        with self._lock:
            if known := self._lanes.get((queue, priority)):
                known.yield_at(now + seconds, now)

    def expect_channels(self, due_in: float | None) -> None:
        """When to claim from channels again; None: when something is offered, or a scan finds something."""
        with self._lock:
            self._channels_due = float("inf") if due_in is None else time.monotonic() + due_in

    def choose(self) -> tuple[list[Lane], bool]:
        """The lanes to claim from, or True: to claim from channels. If both are due, either comes half of the times."""
        planned = self.plan()
        due = self._channels_due is not None and self._channels_due <= time.monotonic()
        return ([], True) if due and (not planned or random.random() < 0.5) else (planned, False)  # noqa: PLR2004, S311

    def plan(self) -> list[Lane]:
        """The lanes that are due, higher priorities first; equal ones take turns in being first."""
        moment = time.monotonic()
        with self._lock:
            due = [
                Lane(*name, known.watermark) for name, known in self._lanes.items() if known.claim_at(moment) <= moment
            ]
        random.shuffle(due)
        due.sort(key=lambda lane: -lane.priority)
        return due

    def advance(self, planned: Sequence[Lane], claimed: Sequence[Claimed], asked: int) -> bool:
        """Raise the watermarks to what was claimed; says whether the planned lanes are exhausted."""
        exhausted = len(claimed) < asked
        full = None if exhausted or not claimed else (claimed[-1].queue, claimed[-1].priority)
        last = {(message.queue, message.priority): message.scheduled_at for message in claimed}
        with self._lock:
            for name, scheduled_at in last.items():
                if known := self._lanes.get(name):
                    known.advance(scheduled_at, has_more=name == full)
            if exhausted:
                for lane in planned:
                    if known := self._lanes.get((lane.queue, lane.priority)):
                        known.due = float("inf")
                        known.misses += (lane.queue, lane.priority) not in last
        return exhausted

    def due_in(self) -> float | None:
        """Seconds until the next message is due; None if none is known."""
        moment = time.monotonic()
        with self._lock:
            due = min((known.claim_at(moment) for known in self._lanes.values()), default=float("inf"))
            due = min(due, float("inf") if self._channels_due is None else self._channels_due)
        return None if due == float("inf") else due - moment

    def nothing_is_due(self) -> bool:
        """Whether nothing is known to be due; a claim from channels that met another one (TAKEN) knows of nothing."""
        due_in = self.due_in()
        return due_in is None or due_in > TAKEN


def _watermark(head: LaneHead) -> datetime:
    """The due time of the first message, or now (less SLACK) if that is due later: new offers lie above it."""
    return head.first_at if head.due_in <= 0 else _before(head.first_at, timedelta(seconds=head.due_in) + SLACK)


def _before(moment: datetime, delay: timedelta) -> datetime:
    try:
        return moment - delay
    except OverflowError:  # before the year 1
        return moment
