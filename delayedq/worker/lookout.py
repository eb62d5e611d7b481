"""The thread that watches the queue from the side, so that no claim waits for a look.

It hears of offers (NOTIFY on PostgreSQL, the data version on SQLite), looks which lanes there are and what is due in
them, and wakes the loop. It has its own connection. Looks take at most a twentieth of the time, however slow dead rows
make them: meanwhile the loop claims from what it knows.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.store.base import NOTIFY_GAP

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from delayedq.store.protocol import Listener, Store
    from delayedq.worker.lanes import Lanes

logger = logging.getLogger("delayedq")

#: A busy worker looks again for what its floors may have missed.
BUSY_INTERVAL = 1.0
#: Offers that follow one another closely send one wake-up: after hearing it, look again so many seconds later.
ATTEND = 2 * NOTIFY_GAP
_DUTY = 20


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
        self._asked = True
        self._rest_until = 0.0
        self._look_at = 0.0
        self._attend_at = float("inf")

    def ask(self) -> None:
        """Look again soon, and wake the loop then."""
        if not self._asked:
            self._asked = True
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
        failures = 0
        while not self._stopping:
            try:
                self._watch()
            except Error as error:
                failures += 1
                logger.warning("The lookout lost its connection (%s); it tries again.", str(error).strip())
                connections[self._store.alias].close()
                self._pause(min(30.0, 0.1 * 2**failures) * random.uniform(0.5, 1.0))  # noqa: S311
            else:
                failures = 0
        connections[self._store.alias].close()

    def _watch(self) -> None:
        listener = self._store.listener()
        try:
            self._asked = True  # what was said while nobody listened
            while not self._stopping:
                if self._heard(listener):
                    self._lanes.hint()
                    self._wake()
                    self._asked = True
                    self._attend_at = time.monotonic() + ATTEND
                self._look_if_due()
        finally:
            listener.close()

    def _heard(self, listener: Listener) -> bool:
        """Wait until there is something to do; did the queue change?"""
        if listener.interval is None:
            self._pause(self._patience(), listener)
        else:
            self._pause(min(listener.interval, self._patience()))
        return listener.heard()

    def _patience(self) -> float:
        return max(0.0, self._wanted_at() - time.monotonic())

    def _wanted_at(self) -> float:
        """The moment of the next look."""
        return self._rest_until if self._asked else min(self._look_at, max(self._attend_at, self._rest_until))

    def _pause(self, seconds: float, listener: Listener | None = None) -> None:
        watched = [self._asked_fd] if listener is None else [self._asked_fd, listener.fileno()]
        readable, _, _ = select.select(watched, [], [], seconds)
        if self._asked_fd in readable:
            os.read(self._asked_fd, 4096)

    def _look_if_due(self) -> None:
        moment = time.monotonic()
        if moment < self._wanted_at() or self._stopping:
            return
        self._asked = False
        if moment >= self._attend_at:
            self._attend_at = float("inf")
        sights = self._store.look(self._queues)
        seen = time.monotonic()
        self._lanes.see(sights, seen)
        self._rest_until = seen + _DUTY * (seen - moment)
        busy = any(sight.due_in <= 0 for sight in sights)
        self._look_at = seen + max(_DUTY * (seen - moment), BUSY_INTERVAL if busy else self._poll_interval)
        self._wake()
