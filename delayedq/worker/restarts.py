"""When a process that died is started again."""

from __future__ import annotations

import time
from math import inf

from delayedq.core.retries import RESTARTING

#: A process that dies within 10 s of its start is replaced after a pause that doubles each time.
SHORT_LIFE = 10.0


class Restarts:
    """Those of one worker, or of the lease keeper: one process after another. `longest_pause` is in seconds."""

    def __init__(self, longest_pause: float = inf) -> None:
        self._longest_pause = longest_pause
        self._started_at = self._start_at = 0.0
        self._short_lives = 0

    def started(self) -> None:
        self._started_at = time.monotonic()

    def died(self) -> float:
        """Returns the seconds until the next one may start."""
        moment = time.monotonic()
        self._short_lives = self._short_lives + 1 if moment - self._started_at < SHORT_LIFE else 0
        pause = RESTARTING(self._short_lives).total_seconds() if self._short_lives else 0.0
        pause = min(pause, self._longest_pause)
        self._start_at = moment + pause
        return pause

    def due_in(self) -> float:
        """Seconds until the next one may start; 0.0: now."""
        return max(0.0, self._start_at - time.monotonic())
