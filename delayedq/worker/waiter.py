"""Waiting that a thread or a signal handler can end."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta

from delayedq.core.backoff import Exponential

#: Pauses between tries to reach the database, from the number of failures.
RECONNECTING = Exponential(initial=timedelta(seconds=0.1), factor=2, maximum=timedelta(seconds=30))


class Waiter:
    """One thread waits, anybody wakes it; a wake-up between two waits ends the next one at once.

    A bare lock that is free exactly when somebody has called: there is no moment between looking and sleeping at which
    a wake-up could be missed, not even that of a signal handler in the waiting thread.
    """

    def __init__(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it has been called already
            self._called.release()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until woken, or for `timeout` seconds; says whether it was woken."""
        return self._called.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
