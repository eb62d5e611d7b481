"""Timeouts of sync tasks: an exception raised in the thread that runs one."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from contextlib import nullcontext
from math import inf
from typing import TYPE_CHECKING

from delayedq.core.lifecycle import Raised
from delayedq.exceptions import TaskTimeout
from delayedq.worker.executor import Ended, execute, execute_jointly

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from delayedq.worker.attempt import Attempt


class Deadlines:
    """Raises TaskTimeout in threads whose task has run out of time.

    The exception is delivered between two instructions of Python; a call into C that does not return can't be
    interrupted, and keeps its message until it does.

    Where it comes in a `__del__` or in the callback of a weak reference, Python drops it and calls
    `sys.unraisablehook`; then it is raised again.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        #: When the time of each running thread is over; never again once it was interrupted.
        self._running: dict[int, float] = {}
        self._other_hook, self._hook = sys.unraisablehook, self._dropped
        sys.unraisablehook = self._hook

    def close(self) -> None:
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._other_hook

    def execute(self, attempt: Attempt) -> Ended:
        """Run a sync task under its timeout in the calling thread."""
        assert attempt.task.timeout is not None
        started, ended = time.monotonic(), None
        try:
            self.arm(attempt.task.timeout)
            ended = execute(attempt)
            self.disarm()
        except TaskTimeout as error:  # it arrived just before the task, or between its end and this line
            ended = ended or Ended(attempt, Raised(), started, time.monotonic(), error)
            self.disarm()
        return _explained(ended)

    def execute_jointly(self, attempt: Attempt) -> Ended:
        """Run an exactly-once task under its timeout, if it has one; its commit is never interrupted."""
        timeout = attempt.task.timeout
        return _explained(execute_jointly(attempt, nullcontext() if timeout is None else Limit(self, timeout)))

    def arm(self, timeout: timedelta) -> None:
        """From now until `disarm`, the calling thread may be interrupted."""
        with self._lock:
            self._running[threading.get_ident()] = time.monotonic() + timeout.total_seconds()
        self._wake()  # the loop may sleep for longer than that

    def disarm(self) -> None:
        with self._lock:
            interrupted = self._running.pop(threading.get_ident(), None) == inf
        if interrupted:
            self._swallow()

    def _swallow(self) -> None:
        """Let a late exception arrive here, where it does no harm."""
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
            for _ in range(100):
                pass
        except TaskTimeout:
            pass

    def _dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Called in the interrupted thread, perhaps while it holds the lock."""
        if dropped.exc_type is not TaskTimeout:
            self._other_hook(dropped)
        elif threading.get_ident() in self._running:
            self._running[threading.get_ident()] = time.monotonic()
            self._wake()

    def enforce(self) -> float | None:
        moment = time.monotonic()
        with self._lock:
            for thread, deadline in self._running.items():
                if deadline <= moment:
                    self._running[thread] = inf
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TaskTimeout))
            deadline = min(self._running.values(), default=inf)
        return None if deadline == inf else deadline - moment


class Limit:
    """Raises TaskTimeout in its block when the time is over, and never after it."""

    def __init__(self, deadlines: Deadlines, timeout: timedelta) -> None:
        self._deadlines = deadlines
        self._timeout = timeout

    def __enter__(self) -> None:
        self._deadlines.arm(self._timeout)

    def __exit__(self, *_: object) -> None:
        self._deadlines.disarm()


def _explained(ended: Ended) -> Ended:
    """TaskTimeout is raised from outside, without a word."""
    if isinstance(ended.error, TaskTimeout):
        ended.error.args = (f"It took longer than {ended.attempt.task.timeout}.",)
    return ended
