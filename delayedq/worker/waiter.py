"""Waiting that a thread or a signal handler can end."""

from __future__ import annotations

import threading


class Waiter:
    """One thread waits, anybody wakes it; a wake-up between two waits ends the next one at once.

    `wake` is cheap while nobody sleeps, and safe in a signal handler: the condition's lock is reentrant.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._woken = False
        self._sleeping = False

    def wake(self) -> None:
        self._woken = True
        if self._sleeping:
            with self._condition:
                self._condition.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until woken, or for `timeout` seconds; says whether it was woken."""
        with self._condition:
            self._sleeping = True
            if not self._woken and (timeout is None or timeout > 0):
                self._condition.wait(timeout)
            self._sleeping = False
            woken, self._woken = self._woken, False
        return woken
