"""The thread that keeps the ticks of the settings' schedules placed ahead of time; each worker process has one."""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq.cron.beat import beat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayedq.cron.definitions import Definition
    from delayedq.store.protocol import Store

logger = logging.getLogger("delayedq")

#: Seconds between two beats; ticks are placed ten times as far ahead.
EVERY = 60.0
#: Seconds until the next try, while the database is away.
RETRY = 5.0


class Beat(threading.Thread):
    def __init__(self, store: Store, definitions: Mapping[str, Definition]) -> None:
        super().__init__(name="delayedq-beat", daemon=True)
        self._store = store
        self._definitions = definitions
        self._stopped = threading.Event()
        self._pause = 0.0
        self._thorough = True

    def begin(self) -> None:
        """Beat once in the calling thread, so that nothing is claimed before missed ticks were judged; then start."""
        self._beat()
        if self._definitions:
            self.start()

    def run(self) -> None:
        while not self._stopped.wait(self._pause):
            self._beat()
            connections[self._store.alias].close()

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()

    def _beat(self) -> None:
        try:
            beat(self._store, self._definitions, thorough=self._thorough)
        except Error as error:
            logger.warning("The beat of the cron schedules was interrupted: %s", str(error).strip())
            connections[self._store.alias].close()
            self._pause = RETRY
        else:
            self._thorough = False
            self._pause = EVERY * random.uniform(0.8, 1.0)  # noqa: S311
