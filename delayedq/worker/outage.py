"""While the database is away."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from django.db import Error

from delayedq.worker.waiter import RECONNECTING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.protocol import Store

logger = logging.getLogger("delayedq")


class Outage:
    """When to try again, and which ends may have been stored without an answer."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._failures = 0
        self._retry_at = 0.0
        self._unsure: set[int] = set()

    def begin(self, error: Error, unsure: Iterable[int]) -> None:
        """Wait a little longer each time, with jitter; the ends of these messages may be stored or not."""
        self._failures += 1
        self._unsure.update(unsure)
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
