"""The thread that finds out which lanes there are and when they are due, so that no claim waits for a scan.

It hears of offers (NOTIFY on PostgreSQL, the data version on SQLite) and wakes the loop. It has its own connections.

A *peek* reads from the watermarks of lanes that claims found empty, and is short: it tells the idle loop how long to
sleep. A *scan* reads from the beginning, and so sees new lanes, late commits and expired leases; rows that are dead but
not vacuumed yet make it slow, so periodic scans take at most a twentieth of the time. Offers are not heard during one:
the loop claims from the lanes it knows every 10 ms then. If the last scan was long, what others offer is looked for
*ahead* only: new lanes, and what is behind the watermarks.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.limits.channels import Channels
from delayedq.store.database import NOTIFY_WAIT, WakeUpPipe
from delayedq.worker.lanes import UNHEARD
from delayedq.worker.sessions import keep_no_query_log
from delayedq.worker.silence import end_lost_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractContextManager

    from delayedq.store.base import Store
    from delayedq.store.database import Listener
    from delayedq.store.protocol import LaneHead
    from delayedq.worker.lanes import Lanes
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

#: An answer counts from when its statement came to the database: within 10 ms, or the time of the shortest answer.
ARRIVES_WITHIN = 0.01

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
        tasks_lack: Callable[[float], bool] = lambda _: False,
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
        #: When it got its connection. Who had none before may not have tried since: the database was away.
        self._connected_at = 0.0
        #: When to listen again, and since when other parts of this worker have no connection.
        self._listen_at, self._others_lack_since = float("inf"), float("inf")
        self._scanned_at = 0.0
        #: Seconds that the last scan took, and the shortest answer.
        self._took, self._shortest = 0.0, float("inf")
        self._listen_pause = LISTEN_AGAIN
        #: The next scan that is planned; no scan may begin before `_may_scan_at`, when the last one has rested enough.
        #: From `_rested_at` on, scans take no more than a twentieth of the time.
        self._next_scan_at = 0.0
        self._may_scan_at = self._rested_at = 0.0
        #: The same for scans ahead.
        self._next_look_at, self._may_look_at = float("inf"), 0.0
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
        self._connected_at = time.monotonic()
        self._next_scan_at = self._listen_at = 0.0  # offers until now were not heard
        try:
            while not self._stopping:
                self._listen_or_spare()
                planned = min(self._next_scan_at, self._next_look_at, self._next_peek_at)
                wake_at = min(planned, self._proof_ends_at, self._listen_at)
                self._pipe.wait(max(0.0, wake_at - time.monotonic()), self._listener)
                if self._listener is not None:
                    self._hear(self._listener)
                with self._wait:
                    end_lost_sessions(self._store.database)
                    self._scan_or_peek()
        finally:
            self._stop_listening()

    def _listen_or_spare(self) -> None:
        """Listen, unless the loop, cron, the keeper or tasks had no connection for a while: then it does without.

        Not during an outage, when this thread has none either, nor as long as they have not tried again after one: then
        it would be deaf for longer than that.
        """
        moment, since = time.monotonic(), self._connected_at
        if not (
            self._outage.another_lacks_connection("poller", since)
            or (self._leases is not None and self._leases.keeper_lacks_connection(since))
            or self._tasks_lack(since)
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
            self._plan_to_look(moment + wait)
            self._wake()

    @property
    def _scans_are_long(self) -> bool:
        return self._took > UNHEARD

    def _plan_to_look(self, moment: float) -> None:
        """For what others have offered: from then on, as soon as the rest allows."""
        may_scan_at = self._may_scan_at
        if self._scans_are_long:
            may_scan_at = self._rested_at
            self._next_look_at = min(self._next_look_at, max(self._may_look_at, moment))
        self._next_scan_at = min(self._next_scan_at, max(may_scan_at, moment))

    def _heads(self, scan: Callable[[], Iterable[LaneHead]]) -> list[LaneHead]:
        """What a scan finds. If the last one was long, the loop knows that nobody hears of offers meanwhile."""
        if self._scans_are_long:
            self._lanes.scan_begins()
            self._wake()
        try:
            return [head for head in scan() if self._lanes.serves(head.queue)]
        finally:
            self._lanes.scan_has_ended()

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
        elif moment >= self._next_look_at:
            self._look_ahead(moment)
        elif moment >= self._next_peek_at:
            self._next_peek_at = float("inf")
            if lanes := self._lanes.to_peek():
                self._lanes.peeked(lanes, self._store.peek(lanes), self._asked(moment))
            self._wake()

    def _look_ahead(self, moment: float) -> None:
        self._next_peek_at = self._next_look_at = float("inf")
        heads = self._heads(lambda: self._store.scan_ahead(self._lanes.known(), self._queues))
        seen = time.monotonic()
        self._lanes.scanned_ahead(heads, self._asked(moment))
        self._may_look_at = seen + WANTED_REST * (seen - moment)
        if moment < self._rescan_before:
            self._plan_to_look(self._rescan_before)
        self._wake()

    def _scan(self, moment: float) -> None:
        self._next_peek_at = self._next_look_at = self._next_scan_at = float("inf")
        heads = self._heads(lambda: self._store.scan(self._queues))
        seen = self._scanned_at = time.monotonic()
        took = self._took = seen - moment
        is_first = not self._lanes.scans
        self._lanes.scanned(heads, self._asked(moment))
        if is_first and any(
            Channels.of(self._store).coming()
        ):  # workers before may have left something, but no message
            self._lanes.expect_channels(0.0)
        self._outage.end("poller")
        busy = any(head.due_in <= 0 for head in heads)
        self._may_scan_at, self._rested_at = seen + WANTED_REST * took, seen + ROUTINE_REST * took
        asked = self._next_scan_at < float("inf")  # during this scan
        self._next_scan_at = max(self._rested_at, seen + (BUSY_INTERVAL if busy else self._interval()))
        if asked:
            self._next_scan_at = min(self._next_scan_at, self._may_scan_at)
        elif moment < self._rescan_before:
            self._plan_to_look(self._rescan_before)
        self._wake()

    def _asked(self, sent_at: float) -> float:
        """The moment from which the answer of a statement counts that was sent then, and is known now."""
        took = time.monotonic() - sent_at
        self._shortest = min(self._shortest, took)
        return sent_at + min(took, max(ARRIVES_WITHIN, self._shortest))
