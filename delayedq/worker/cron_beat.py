"""The thread that keeps the ticks of the settings' schedules placed ahead of time; each worker process has one."""

from __future__ import annotations

import logging
import random
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from django.db import connections

from delayedq.conf import get_settings
from delayedq.cron.beat import LOST, Beats
from delayedq.worker.sessions import keep_no_query_log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store
    from delayedq.worker.outage import Outage

logger = logging.getLogger("delayedq")

#: Seconds between two beats, or fewer with a short CRON_GRACE, in which some must fit. Ticks are placed ten times as
#: far ahead.
EVERY = 60.0
#: Seconds until the next try, while the database is away.
RETRY = 5.0


class CronBeat(threading.Thread):
    """`begin` judges missed ticks before anything is claimed; then the thread beats about once a minute."""

    def __init__(
        self,
        store: Store,
        definitions: Mapping[str, Definition],
        outage: Outage,
        wait: AbstractContextManager[None] | None = None,
    ) -> None:
        super().__init__(name="delayedq-beat", daemon=True)
        self._store = store
        self._beats = Beats(store, definitions)
        self._outage = outage
        self._wait = wait or nullcontext()
        self._stopped = threading.Event()
        self._pause = 0.0

    def begin(self, *, wait: bool) -> None:
        """Start; with `wait`, after a first beat in the calling thread, so that missed ticks are placed before.

        Claims need not wait for it: a tick carries the time at which it counts as missed (`cron.starting`).
        """
        if wait:
            self._beat()
        self.start()

    def run(self) -> None:
        keep_no_query_log(self._store.alias)
        while not self._stopped.wait(self._pause):
            self._beat()
            connections[self._store.alias].close()

    def stop(self, patience: float | None = None) -> None:
        """End the thread, and wait for it, `patience` seconds at most: it may wait for a database that is silent."""
        self._stopped.set()
        if self.is_alive():
            self.join(patience)

    def _beat(self) -> None:
        try:
            with self._wait:
                self._beats.beat(going=lambda: not self._stopped.is_set())
        except LOST as error:
            lacks_connection = connections[self._store.alias].connection is None
            self._outage.begin(error, "cron", lacks_connection=lacks_connection)
            connections[self._store.alias].close()
            self._pause = RETRY
            return
        except Exception:
            logger.exception("A beat of cron failed; the next one tries again.")
        self._outage.end("cron")
        every = min(EVERY, get_settings().CRON_GRACE.total_seconds() / 4)
        self._pause = every * random.uniform(0.8, 1.0)  # noqa: S311
