"""The thread that watches the queue from the side, so that no claim waits for a look.

It hears of offers (NOTIFY on PostgreSQL, the data version on SQLite), knows which lanes there are and what is due in
them, and wakes the loop. It has its own connection.

A *glance* goes from the floors of the known lanes on and is always short: it tells the idle loop how long to sleep. A
*look* starts from the beginning, and so sees new lanes, late commits and expired leases; rows that are dead but not
vacuumed make it slow, so routine looks take at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.store.base import NOTIFY_GAP
from delayedq.store.protocol import BARE
from delayedq.worker.waiter import RECONNECTING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from delayedq.store.protocol import Listener, Store
    from delayedq.worker.lanes import Lanes

logger = logging.getLogger("delayedq")

#: A busy worker looks again for what its floors may have missed.
BUSY_INTERVAL = 1.0
#: After a look that took t: rest 20 t before a routine one, 5 t before one that somebody waits for.
ROUTINE_REST, WANTED_REST = 20, 5
#: Offers that follow one another closely send one wake-up: after hearing it, look again so many seconds later.
ATTEND = 2 * NOTIFY_GAP
#: The loop, which claims from the lanes it knows, goes first.
YIELD = 0.005


class Lookout(threading.Thread):
    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        queues: Collection[str] | None,
        poll_interval: float,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="delayedq-lookout", daemon=True)
        self._store = store
        self._lanes = lanes
        self._queues = queues
        self._poll_interval = poll_interval
        self._wake = wake
        self._asked_fd, self._ask_fd = os.pipe()
        os.set_blocking(self._ask_fd, False)
        self._stopping = False
        self._glance_at = float("inf")
        self._look_at = 0.0
        self._rested_at = 0.0
        self._attend_at = 0.0
        self._failures = 0

    def ask(self) -> None:
        """Glance now, and wake the loop then; unless a look does so in a moment."""
        if self._look_at > time.monotonic() + YIELD:
            self._glance_at = 0.0
            self._rouse()

    def ask_to_look(self) -> None:
        """Look as soon as may be, and wake the loop then."""
        if self._look_at > self._rested_at:
            self._look_at = self._rested_at
            self._rouse()

    def stop(self) -> None:
        self._stopping = True
        self._rouse()
        self.join()
        os.close(self._asked_fd)
        os.close(self._ask_fd)

    def _rouse(self) -> None:
        with suppress(BlockingIOError):  # it has not read the last ones yet
            os.write(self._ask_fd, b".")

    def run(self) -> None:
        while not self._stopping:
            try:
                self._watch()
            except Exception as error:
                self._failures += 1
                unexpected = None if isinstance(error, Error) else error
                logger.warning("The lookout was interrupted (%s); it tries again.", error, exc_info=unexpected)
                connections[self._store.alias].close()
                self._pause(RECONNECTING(self._failures).total_seconds())
        connections[self._store.alias].close()

    def _watch(self) -> None:
        listener = self._store.listener()
        try:
            self._look_at = 0.0  # nobody listened until now
            while not self._stopping:
                if self._heard(listener):
                    moment = time.monotonic()
                    self._attend_at = moment + ATTEND
                    wait = YIELD if self._lanes.hint() else 0.0
                    self._look_at = min(self._look_at, max(self._rested_at, moment + wait))
                    self._wake()
                self._look_or_glance()
        finally:
            listener.close()

    def _heard(self, listener: Listener) -> bool:
        """Wait until there is something to do; did the queue change?"""
        patience = max(0.0, min(self._look_at, self._glance_at) - time.monotonic())
        if listener.interval is None:
            self._pause(patience, listener)
        else:
            self._pause(min(listener.interval, patience))
        return listener.heard()

    def _pause(self, seconds: float, listener: Listener | None = None) -> None:
        watched = select.poll()  # unlike select(), it takes descriptors of any number
        watched.register(self._asked_fd, select.POLLIN)
        if listener is not None:
            watched.register(listener.fileno(), select.POLLIN)
        ready = watched.poll(min(seconds, 3600) * 1000)
        if any(descriptor == self._asked_fd for descriptor, _ in ready):
            os.read(self._asked_fd, 4096)

    def _look_or_glance(self) -> None:
        moment = time.monotonic()
        if moment >= self._look_at:
            self._look(moment)
        elif moment >= self._glance_at:
            self._glance_at = float("inf")
            known = self._lanes.known()
            self._lanes.glimpse(self._store.glance(known), time.monotonic())
            self._wake()

    def _look(self, moment: float) -> None:
        self._glance_at = self._look_at = float("inf")
        sights = [sight for sight in self._store.look(self._queues) if BARE not in sight.queue]
        seen = time.monotonic()
        took = seen - moment
        self._lanes.see(sights, seen)
        self._failures = 0
        busy = any(sight.due_in <= 0 for sight in sights)
        self._rested_at = seen + WANTED_REST * took
        asked = self._look_at < float("inf")  # while it looked
        self._look_at = seen + max(ROUTINE_REST * took, BUSY_INTERVAL if busy else self._poll_interval)
        if asked:
            self._look_at = min(self._look_at, self._rested_at)
        elif moment < self._attend_at:
            self._look_at = min(self._look_at, max(self._rested_at, self._attend_at))
        self._wake()
