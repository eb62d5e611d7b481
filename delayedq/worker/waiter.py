"""Waiting that a thread or a signal handler can end."""

from __future__ import annotations

import threading
from contextlib import suppress


class Waiter:
    """One thread waits, any thread or signal handler wakes it; a wake-up between two waits ends the next one at once.

    A bare lock that is free exactly while a wake-up is pending. Checking and sleeping are one operation, so no wake-up
    is missed in between, not even that of a signal handler in the waiting thread.
    """

    def __init__(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def wake(self) -> None:
        """End the wait in progress, or the next one."""
        with suppress(RuntimeError):  # a wake-up is pending already
            self._called.release()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until woken, or for `timeout` seconds; says whether it was woken."""
        return self._called.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
