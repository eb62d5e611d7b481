"""Timeouts and cancelling of sync tasks: an exception raised in the thread that runs one."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from contextlib import nullcontext
from math import inf
from typing import TYPE_CHECKING

from delayedq.core.lifecycle import Raised
from delayedq.exceptions import INTERRUPTIONS, TaskCancelled, TaskTimeout
from delayedq.worker.executor import execute, execute_exactly_once
from delayedq.worker.silence import give_up_statements
from delayedq.worker.transitions import AttemptResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.worker.attempt import Attempt


logger = logging.getLogger("delayedq")

#: Seconds between two looks whether `enforce` is over, which takes less than a millisecond.
SHORT = 0.0001


class Deadlines:
    """Raises TaskTimeout in threads whose task has run out of time, TaskCancelled if its message was cancelled.

    The exception is delivered between two Python instructions; a call into C can't be interrupted, and the attempt
    goes on until it returns. A thread that has not ended its task `patience` seconds after that loses its connections
    to databases: if it waits for one, its statement fails, and the exception is delivered.

    If it is delivered in a `__del__` or in the callback of a weak reference, Python drops it and calls
    `sys.unraisablehook`; then it is raised again.
    """

    def __init__(self, wake: Callable[[], None], patience: float = inf) -> None:
        self._wake = wake
        self._patience = patience
        #: Held by `enforce` alone. Threads that may be interrupted take no lock: on Python 3.14 the exception may come
        #: between its acquisition and the block that releases it.
        self._enforcing = threading.Lock()
        #: By running thread: the moment (monotonic) at which it is interrupted.
        self._running: dict[int, float] = {}
        #: By thread that was interrupted: the moment at which its statements are given up; infinity: they were.
        self._interrupted: dict[int, float] = {}
        #: By running thread: the end of its timeout, and what it runs.
        self._armed: dict[int, tuple[float, Attempt]] = {}
        self._lost: list[Attempt] = []
        self._other_hook, self._hook = sys.unraisablehook, self._dropped
        sys.unraisablehook = self._hook

    def close(self) -> None:
        """Put the former `sys.unraisablehook` back."""
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._other_hook

    def execute(self, attempt: Attempt) -> AttemptResult:
        """Run a sync task under its timeout in the calling thread."""
        started, ended = time.monotonic(), None
        try:
            self.arm(attempt)
            ended = execute(attempt)
            self.disarm()
        except INTERRUPTIONS as error:  # raised just before the task, or between its end and this line
            ended = ended or AttemptResult(attempt, Raised(), started, time.monotonic(), error)
            self.disarm()
        return _explained(ended)

    def execute_exactly_once(self, attempt: Attempt) -> AttemptResult:
        """Run an exactly-once task under its timeout, if it has one; its commit is never interrupted."""
        if not attempt.may_be_interrupted:
            return _explained(execute_exactly_once(attempt, nullcontext()))
        try:
            return _explained(execute_exactly_once(attempt, TimeLimit(self, attempt)))
        finally:
            self.disarm()  # it may have been interrupted while it entered or left its limit

    def arm(self, attempt: Attempt) -> None:
        """From now until `disarm`, the calling thread may be interrupted: when the timeout of its task is over."""
        thread, deadline = threading.get_ident(), time.monotonic() + attempt.time_limit()
        self._interrupted.pop(thread, None)
        self._armed[thread] = deadline, attempt
        self._running[thread] = deadline
        self._wake()  # the loop may be about to sleep for longer than that

    def disarm(self) -> None:
        """From now on the calling thread is not interrupted, also not by an exception that is on its way.

        If one is raised in here, call it again.
        """
        thread = threading.get_ident()
        self._running.pop(thread, None)
        while self._enforcing.locked():  # it may have seen this thread before
            time.sleep(SHORT)
        self._armed.pop(thread, None)
        if self._interrupted.pop(thread, None) is not None:
            self._swallow()

    def _swallow(self) -> None:
        """Cancel an exception that was not delivered yet, or receive it here, where it does no harm."""
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
            for _ in range(100):
                pass
        except INTERRUPTIONS:
            pass

    def _dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Called in the interrupted thread."""
        thread = threading.get_ident()
        if dropped.exc_type not in INTERRUPTIONS:
            self._other_hook(dropped)
        elif thread in self._running:
            if dropped.exc_type is TaskTimeout:
                self._running[thread] = time.monotonic()
            self._interrupted.pop(thread, None)
            self._wake()

    def enforce(self) -> float | None:
        """Interrupt the threads whose time is over, or whose message was cancelled, and give up the statements of those
        that do not end. Returns the seconds until there is more of this to do, or None.
        """
        moment = time.monotonic()
        with self._enforcing:
            running = list(self._running.items())
            for thread, deadline in running:
                if thread not in self._interrupted:
                    self._interrupt(thread, deadline <= moment)
                elif self._interrupted.get(thread, inf) <= moment:  # `_dropped` may take it away meanwhile
                    self._give_up(thread)
            deadline = min((self._interrupted.get(thread, at) for thread, at in running), default=inf)
        return None if deadline == inf else deadline - moment

    def _interrupt(self, thread: int, is_late: bool) -> None:
        """Within the lock, so the thread does not get past `disarm`: it runs this attempt, or is about to end it."""
        _, attempt = self._armed[thread]
        is_cancelled = attempt.task.interruptible and attempt.lease_lost
        if is_late or is_cancelled:
            self._interrupted[thread] = time.monotonic() + self._patience
            error = TaskTimeout if is_late else TaskCancelled
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

    def _give_up(self, thread: int) -> None:
        """Within the lock: the thread is armed. Its task may wait for a database; what it does there is rolled back."""
        self._interrupted[thread] = inf
        _, attempt = self._armed[thread]
        give_up_waits(attempt, thread, self._patience)

    def overdue(self, after: float) -> list[Attempt]:
        """The attempts that run on `after` seconds after their timeout: they can't be interrupted. Each is logged once.

        Such a thread is lost, as long as its task swallows TaskTimeout or is in a call into C.
        """
        moment = time.monotonic()
        lost = [attempt for deadline, attempt in list(self._armed.values()) if deadline + after <= moment]
        for attempt in lost:
            if attempt not in self._lost:
                logger.error(
                    "%r runs on %.0f s after its time was over and can't be interrupted: its thread is lost.",
                    attempt, after,
                    extra={"pid": os.getpid(), "message_id": attempt.id, "queue": attempt.queue},
                )  # fmt: skip
        self._lost = lost
        return lost


def give_up_waits(attempt: Attempt, thread: int, after: float) -> None:
    """Close the connections of the thread to databases: its attempt was interrupted `after` seconds ago, and it is not
    free. It may wait for one of them.
    """
    if give_up_statements(thread):
        logger.warning(
            "The thread of %r is not free %.1f s after that was interrupted: its connections to databases are closed.",
            attempt, after, extra={"pid": os.getpid(), "message_id": attempt.id, "queue": attempt.queue},
        )  # fmt: skip


class TimeLimit:
    """Raises TaskTimeout in its block when the time is over, and never after it."""

    def __init__(self, deadlines: Deadlines, attempt: Attempt) -> None:
        self._deadlines = deadlines
        self._attempt = attempt

    def __enter__(self) -> None:
        self._deadlines.arm(self._attempt)

    def __exit__(self, *_: object) -> None:
        self._deadlines.disarm()


def _explained(ended: AttemptResult) -> AttemptResult:
    """What is raised from another thread has no arguments: say why it was."""
    if isinstance(ended.error, TaskTimeout):
        ended.error.args = ended.attempt.overtime().args
    if isinstance(ended.error, TaskCancelled):
        ended.error.args = ("Its message was cancelled while it ran.",)
    return ended
