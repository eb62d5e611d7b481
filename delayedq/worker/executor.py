"""Run one message and say how it ended. Only an exactly-once task touches the queue's tables; see `joint`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.tasks import TaskContext
from django.tasks.signals import task_finished, task_started

from delayedq import results
from delayedq.conf import get_settings
from delayedq.core.atoms import TAG
from delayedq.core.lifecycle import AskedCancel, AskedRetry, AskedSnooze, Impossible, Outcome, Raised, Returned
from delayedq.core.serialization import dumps, load_call
from delayedq.exceptions import (
    ArgumentsMismatch,
    Cancel,
    CannotRun,
    InvalidMessage,
    PayloadTooLarge,
    Retry,
    Snooze,
    TaskTimeout,
)
from delayedq.signals import wanted
from delayedq.tasks import current_attempt, parameters_of
from delayedq.worker.joint import jointly

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from delayedq.store.protocol import Settled
    from delayedq.worker.attempt import Attempt

_RETURNED_NONE = Returned()
TAG_MARK = f'"{TAG}"'


class Ended(NamedTuple):
    """How an attempt ended, with moments of `time.monotonic()`; `started` is None if the task never ran.

    `settled`: the store's answer, if the end of the message has been committed already.
    """

    attempt: Attempt
    outcome: Outcome
    started: float | None
    finished: float
    error: BaseException | None = None
    settled: Settled | None = None


def execute(attempt: Attempt) -> Ended:
    """Run a sync task in the calling thread."""
    run = _Run(attempt)
    try:
        run.prepare()
        return run.returned(attempt.task.func(*run.args, **run.kwargs))
    except BaseException as error:  # noqa: BLE001  a task that calls sys.exit() must not end the worker
        return run.raised(error)
    finally:
        run.leave()


def execute_jointly(attempt: Attempt, limit: AbstractContextManager[object]) -> Ended:
    """Run a sync task in the calling thread, in one transaction with the end of its message.

    The task runs within `limit`, which may raise TaskTimeout in it, but not in the commit.
    """
    run = _Run(attempt)
    try:
        run.prepare()
        with jointly(attempt) as joint:
            with limit:
                value = attempt.task.func(*run.args, **run.kwargs)
            outcome = run.outcome(value)
            joint.end(outcome, run.started)
        return run.committed(outcome, value, joint.settled)
    except BaseException as error:  # noqa: BLE001
        return run.raised(error)
    finally:
        run.leave()


async def aexecute(attempt: Attempt) -> Ended:
    """Run an async task in the calling event loop."""
    run = _Run(attempt)
    timeout = attempt.task.timeout
    limit = asyncio.timeout(None if timeout is None else timeout.total_seconds())
    try:
        if TAG_MARK in attempt.claimed.payload:  # a reference to a model instance is loaded by a query
            await sync_to_async(run.prepare)()
        else:
            run.prepare()
        async with limit:
            returned = await attempt.task.func(*run.args, **run.kwargs)
        return run.returned(returned)
    except BaseException as error:  # noqa: BLE001
        return run.raised(TaskTimeout(f"It took longer than {timeout}.") if limit.expired() else error)
    finally:
        run.leave()


class _Run:
    """One attempt from its start to its end: the steps that sync and async tasks share."""

    __slots__ = ("_context", "_in_task", "_result", "args", "attempt", "kwargs", "started")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.started = time.monotonic()
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self._result: Any = None
        self._in_task = False
        self._context = current_attempt.set(attempt)
        attempt.start()

    def leave(self) -> None:
        current_attempt.reset(self._context)

    def prepare(self) -> None:
        """Read the arguments, and tell whoever listens that the task starts."""
        task = self.attempt.task
        self.args, self.kwargs = load_call(self.attempt.claimed.payload)
        announced = wanted(task_started, logging.INFO)
        if announced or task.takes_context:
            self._result = results.running(self.attempt, self.args, self.kwargs)
        if announced:
            task_started.send_robust(type(task.get_backend()), task_result=self._result)
        if task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]
        self._in_task = True

    def returned(self, value: object) -> Ended:
        return self._ended(self.outcome(value), None, value)

    def outcome(self, value: object) -> Returned:
        """Raises InvalidMessage if the value can't be stored."""
        self._in_task = False
        return _RETURNED_NONE if value is None else Returned(_result(value))

    def committed(self, outcome: Returned, value: object, settled: Settled | None) -> Ended:
        return self._ended(outcome, None, value)._replace(settled=settled)

    def raised(self, error: BaseException) -> Ended:
        match error:
            case Retry():
                return self._ended(AskedRetry(error.delay), error)
            case Snooze():
                return self._ended(AskedSnooze(error.delay, error.until), error)
            case Cancel():
                return self._ended(AskedCancel(), error)
            case CannotRun() | InvalidMessage() if not self._in_task:  # of the stored arguments, or of the result
                return self._ended(Impossible(), error)
            case TypeError() if mismatch := self._mismatch(error):
                return self._ended(Impossible(), mismatch)
            case _:
                return self._ended(Raised(), error)

    def _mismatch(self, error: TypeError) -> ArgumentsMismatch | None:
        """Did the call itself fail, before the first line of the task?"""
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            return None
        args = self.args[1:] if self.attempt.task.takes_context else self.args
        try:
            parameters_of(self.attempt.task).bind(*args, **self.kwargs)
        except TypeError as reason:
            return ArgumentsMismatch(f"The stored arguments do not fit {self.attempt.kind}: {reason}.")
        return None

    def _ended(self, outcome: Outcome, error: BaseException | None, value: object = None) -> Ended:
        finished = time.monotonic()
        if isinstance(outcome, AskedRetry | AskedSnooze):
            pass  # it has not finished, and that is no failure
        elif wanted(task_finished, logging.INFO if isinstance(outcome, Returned) else logging.ERROR):
            result = self._result or results.running(self.attempt, self.args, self.kwargs)
            results.end(result, outcome, error, value)
            task_finished.send_robust(type(self.attempt.task.get_backend()), task_result=result)
        return Ended(self.attempt, outcome, self.started, finished, error)


def _result(value: object) -> str:
    text, limit = dumps(value, where="the result"), get_settings().MAX_PAYLOAD_BYTES
    if len(text) > limit:
        raise PayloadTooLarge(f"The result takes {len(text):,} bytes; DELAYEDQ['MAX_PAYLOAD_BYTES'] allows {limit:,}.")
    return text
