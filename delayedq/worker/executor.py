"""Run one attempt and say how it ended. Only an exactly-once task writes to the queue's tables; see `exactly_once`."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError

from delayedq import results
from delayedq.compat import TaskContext, task_finished, task_started
from delayedq.conf import get_settings
from delayedq.core.lifecycle import (
    AskedCancel,
    AskedRetry,
    AskedSnooze,
    Impossible,
    NotStarted,
    Outcome,
    Raised,
    Returned,
    TooLate,
    is_final,
)
from delayedq.core.serialization import TAG, dumps, load_call
from delayedq.cron.starting import check_start, must_ask
from delayedq.exceptions import (
    ArgumentsMismatch,
    Cancel,
    CannotRun,
    DeadlineExceeded,
    Expired,
    Fail,
    InvalidMessage,
    PayloadTooLarge,
    Retry,
    Snooze,
    Steering,
    TaskTimeout,
)
from delayedq.hooks import Around, attempt_hooks
from delayedq.signals import tell, wanted
from delayedq.tasks import current_attempt, parameters_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from delayedq.store.protocol import Settled
    from delayedq.worker.attempt import Attempt
from delayedq.worker.exactly_once import exactly_once
from delayedq.worker.transitions import AttemptResult, check_in_time, may_be_late, retried

logger = logging.getLogger("delayedq")

# Executor


#: Seconds, on average, until a message is tried again whose task had no connection to begin with.
CONNECTION_PAUSE = 2.0

_RETURNED_NONE = Returned()

_UNWATCHED = nullcontext()

TAG_MARK = f'"{TAG}"'


def execute(attempt: Attempt) -> AttemptResult:
    """Run a sync task in the calling thread."""
    run = _Run(attempt)
    try:
        run.prepare()
        with run:
            value = attempt.task.func(*run.args, **run.kwargs)
            outcome = run.outcome(value)
        return run.returned(outcome, value)
    except BaseException as error:  # noqa: BLE001  a task that calls sys.exit() must not end the worker
        return run.raised(error)
    finally:
        run.leave()


def execute_exactly_once(attempt: Attempt, limit: AbstractContextManager[object]) -> AttemptResult:
    """Run a sync task in the calling thread, in one transaction with the end of its message.

    The task runs within `limit`, which may raise TaskTimeout in it, but not in the commit.
    """
    run = _Run(attempt)
    try:
        run.prepare()
        with exactly_once(attempt) as commit:
            with limit, run:
                value = attempt.task.func(*run.args, **run.kwargs)
                outcome = run.outcome(value)
            commit.end(outcome, run.started)
        return run.committed(outcome, value, commit.settled)
    except BaseException as error:  # noqa: BLE001
        return run.raised(error)
    finally:
        run.leave()


async def aexecute(attempt: Attempt) -> AttemptResult:
    """Run an async task in the calling event loop."""
    run = _Run(attempt)
    limit = asyncio.timeout(attempt.time_limit() if attempt.is_limited else None)
    try:
        if run.asks():
            await sync_to_async(run.prepare)()
        else:
            run.prepare()
        with run:
            try:
                async with limit:
                    value = await attempt.task.func(*run.args, **run.kwargs)
            except BaseException:
                if limit.expired():
                    raise attempt.overtime() from None
                raise
            outcome = run.outcome(value)
        return run.returned(outcome, value)
    except BaseException as error:  # noqa: BLE001
        return run.raised(error)
    finally:
        run.leave()


class _Run:
    """One attempt from its start to its end: the steps that sync and async tasks share. Its body runs in `with run`."""

    __slots__ = (
        "_around", "_began", "_context", "_may_not_start", "_pid", "_result", "_returned", "args", "attempt",
        "kwargs", "started",
    )  # fmt: skip

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.started = time.monotonic()
        self._may_not_start = False
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self._result: Any = None
        self._began = self._returned = False
        self._pid = os.getpid()
        self._context = current_attempt.set(attempt)
        self._around: Around | None = None

    def __enter__(self) -> None:
        self._began = True
        if attempt_hooks():
            self._around = Around(self.attempt)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A process that the task has forked ends here: it must not settle, nor run other messages."""
        if os.getpid() == self._pid:
            if self._around is not None:
                self._around.leave(kind, error, trace)
        else:
            if not isinstance(error, SystemExit):
                masked = results.masked_trace(self.attempt.claimed, error)
                logger.error(
                    "%r returned in a process that it had forked; that process ends. %s", self.attempt, masked,
                    exc_info=None if masked else error, extra={"pid": os.getpid(), "message_id": self.attempt.id},
                )  # fmt: skip
            os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else bool(error))

    def leave(self) -> None:
        current_attempt.reset(self._context)

    def prepare(self) -> None:
        """Read the arguments, and send `task_started` if anyone receives it. Raises what keeps it from starting."""
        task = self.attempt.task
        must_ask = self._must_ask()
        with self.attempt.asking if must_ask or self._has_tags() else _UNWATCHED:
            if must_ask:
                self._ask_whether_to_start()
            self.args, self.kwargs = load_call(self.attempt.claimed.payload)
        announced = wanted(task_started, logging.INFO)
        if announced or task.takes_context:
            self._result = results.running(self.attempt, self.args, self.kwargs)
        if announced:
            tell(task_started, type(self.attempt.task.get_backend()), task_result=self._result)
        if task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]

    def asks(self) -> bool:
        """Whether the database may be asked before it starts."""
        return self._has_tags() or self._must_ask()

    def _has_tags(self) -> bool:
        """Whether its arguments may be values that their class reads from the database, or results of others."""
        return TAG_MARK in self.attempt.claimed.payload

    def _must_ask(self) -> bool:
        """Whether it may have to wait, or come too late."""
        attempt = self.attempt
        return not attempt.is_plain and (must_ask(attempt.claimed) or may_be_late(attempt))

    def _ask_whether_to_start(self) -> None:
        try:
            check_in_time(self.attempt)
            if must_ask(self.attempt.claimed):
                check_start(self.attempt.claimed, self.attempt.cron)
        except (Steering, Expired, DeadlineExceeded):
            self._may_not_start = True
            raise

    def returned(self, outcome: Returned, value: object) -> AttemptResult:
        return self._ended(outcome, None, value)

    def outcome(self, value: object) -> Returned:
        """The outcome of a return value. Raises InvalidMessage if the value can't be stored.

        It belongs to the body: what is around an attempt sees all errors of it.
        """
        self._returned = True
        return _RETURNED_NONE if value is None else Returned(_result(value))

    def committed(self, outcome: Returned, value: object, settled: Settled | None) -> AttemptResult:
        return self._ended(outcome, None, value)._replace(settled=settled)

    def raised(self, error: BaseException) -> AttemptResult:  # noqa: PLR0911
        if not self._began and isinstance(error, OperationalError | InterfaceError):
            return not_begun(self.attempt, error)
        match error:
            case TaskTimeout() if isinstance(overtime := self.attempt.overtime(), DeadlineExceeded):
                return self._ended(Raised(permanent=True), overtime.with_traceback(error.__traceback__))
            case Retry():
                return self._ended(retried(self.attempt, AskedRetry(error.delay), error), error)
            case Snooze():
                return self._ended(AskedSnooze(error.delay, error.until), error)
            case Cancel():
                return self._ended(AskedCancel(), error)
            case Fail() | DeadlineExceeded():
                return self._ended(Raised(permanent=True), error)
            case Expired() if self._may_not_start:
                return self._ended(TooLate(), error)
            case CannotRun() | InvalidMessage() if self._returned or not self._began:  # of the arguments, or the result
                return self._ended(Impossible(), error)
            case TypeError() if mismatch := self._mismatch(error):
                return self._ended(Impossible(), mismatch)
            case _:
                return self._ended(retried(self.attempt, Raised(), error), error)

    def _mismatch(self, error: TypeError) -> ArgumentsMismatch | None:
        """The error to report if the call itself failed, before the first line of the task; else None."""
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            return None
        args = self.args[1:] if self.attempt.task.takes_context else self.args
        try:
            parameters_of(self.attempt.task).bind(*args, **self.kwargs)
        except TypeError as reason:
            return ArgumentsMismatch(f"The stored arguments do not fit {self.attempt.kind}: {reason}.")
        return None

    def _ended(self, outcome: Outcome, error: BaseException | None, value: object = None) -> AttemptResult:
        finished = time.monotonic()
        if (
            self._may_not_start
            or isinstance(error, ArgumentsMismatch)
            or not is_final(outcome, self.attempt.attempt, self.attempt.max_attempts)
            or self.attempt.lease_lost
        ):
            pass  # another attempt follows, maybe in another worker; or `send_signals` reports the end of the message
        elif wanted(task_finished, logging.INFO if isinstance(outcome, Returned) else logging.ERROR):
            result = self._result or results.running(self.attempt, self.args, self.kwargs)
            results.end(result, outcome, error, value, self.attempt.claimed)
            task_finished.send_robust(type(self.attempt.task.get_backend()), task_result=result)
        return AttemptResult(self.attempt, outcome, None if self._may_not_start else self.started, finished, error)


def not_begun(attempt: Attempt, error: BaseException) -> AttemptResult:
    """The connection failed before the first line of the task: it is not charged, and waits a little."""
    logger.warning(
        "%r can't begin yet: %s", attempt, error,
        extra={"pid": os.getpid(), "message_id": attempt.id, "queue": attempt.queue},
    )  # fmt: skip
    delay = timedelta(seconds=CONNECTION_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311
    return AttemptResult(attempt, NotStarted(delay), None, time.monotonic(), error)


def _result(value: object) -> str:
    text, limit = dumps(value, where="the result"), get_settings().MAX_PAYLOAD_BYTES
    if len(text) > limit:
        raise PayloadTooLarge(f"The result takes {len(text):,} bytes; DELAYEDQ['MAX_PAYLOAD_BYTES'] allows {limit:,}.")
    return text
