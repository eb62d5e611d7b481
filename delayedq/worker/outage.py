"""While the database is away: when to try again, one line when it goes and one when it is back."""

from __future__ import annotations

import logging
import os
import threading
import time
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.backoff import RECONNECTING

if TYPE_CHECKING:
    from django.db import Error

logger = logging.getLogger("delayedq")

#: Seconds between two lines while it stays away.
REMIND_EVERY = 60.0


class _Failures(NamedTuple):
    number: int
    failed_at: float
    retry_at: float
    lacks_connection: bool


class Outage:
    """One per process; its parts (loop, poller, cron) call it from their threads. `name` is for the log;
    `longest_pause` (seconds) bounds the pause between two tries.

    An outage begins with the first failure of any part, and ends when every part that failed has had an answer.
    """

    def __init__(self, name: str, longest_pause: float = inf) -> None:
        self._name = name
        self._longest_pause = longest_pause
        self._lock = threading.Lock()
        self._failures: dict[str, _Failures] = {}
        self._began = self._told = 0.0

    def begin(self, error: Error, part: str = "loop", *, lacks_connection: bool = False) -> float:
        """The part has failed: returns the seconds until its next try, longer after each failure, with jitter.

        lacks_connection: it got no connection at all.
        """
        moment = time.monotonic()
        with self._lock:
            if not self._failures:
                self._began, self._told = moment, float("-inf")
            count = self._failures[part].number + 1 if part in self._failures else 1
            pause = min(RECONNECTING(count).total_seconds(), self._longest_pause)
            self._failures[part] = _Failures(count, moment, moment + pause, lacks_connection)
            silent = moment - self._told < REMIND_EVERY
            if not silent:
                self._told = moment
        if not silent:
            text, away = str(error).strip() or repr(error), moment - self._began
            logger.warning(
                "%s: the database has not answered for %.1f s (%s). Next try in %.1f s.", self._name, away, text, pause,
                extra={"pid": os.getpid()},
            )  # fmt: skip
        return pause

    def end(self, part: str = "loop") -> None:
        """The database has answered this part."""
        if part not in self._failures:  # nearly always
            return
        with self._lock:
            del self._failures[part]
            over = not self._failures
        if over:
            logger.warning(
                "%s: the database answers again, after %.1f s.", self._name, time.monotonic() - self._began,
                extra={"pid": os.getpid()},
            )  # fmt: skip

    @property
    def is_on(self) -> bool:
        """True from the first failure of any part until all that failed have had an answer."""
        return bool(self._failures)

    def another_lacks_connection(self, part: str, since: float) -> bool:
        """True while another part than this one gets no connection, and has tried since this moment (monotonic)."""
        others = [failed for other, failed in [*self._failures.items()] if other != part]
        return any(failed.lacks_connection and failed.failed_at > since for failed in others)

    def lasts(self, part: str = "loop") -> bool:
        """True until the next try of this part."""
        return self.rest(part) > 0.0

    def rest(self, part: str = "loop") -> float:
        """Seconds until the next try of this part."""
        failures = self._failures.get(part)
        return 0.0 if failures is None else max(0.0, failures.retry_at - time.monotonic())
