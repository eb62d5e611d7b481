"""Run one attempt and say how it ended. Only an exactly-once task writes to the queue's tables; see `exactly_once`."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asgiref.sync import sync_to_async
from django.db import Error, InterfaceError, OperationalError, connections, transaction

from delayedq import clock, results, signals
from delayedq.compat import TaskContext, task_finished, task_started
from delayedq.conf import get_settings
from delayedq.core.backoff import RECONNECTING, Exponential
from delayedq.core.errors import known_errors, may_retry
from delayedq.core.lifecycle import (
    AskedCancel,
    AskedRetry,
    AskedSnooze,
    Decision,
    FinalOutcome,
    Impossible,
    NotStarted,
    Outcome,
    Raised,
    Returned,
    TooLate,
    decide,
    is_final,
)
from delayedq.core.metadata import STARTED, own, with_own
from delayedq.core.serialization import TAG, dumps, load_call
from delayedq.cron.starting import check_start, must_ask
from delayedq.cron.ticks import later
from delayedq.exceptions import (
    ArgumentsMismatch,
    Cancel,
    CannotRun,
    DeadlineExceeded,
    Expired,
    Fail,
    InvalidMessage,
    LeaseLost,
    PayloadTooLarge,
    Retry,
    Snooze,
    Steering,
    TaskTimeout,
    WorkerHung,
    WorkerVanished,
)
from delayedq.hooks import Around, attempt_hooks
from delayedq.limits.offers import as_stored
from delayedq.masking import error_text
from delayedq.models import Message
from delayedq.signals import wanted
from delayedq.steps.store import has_steps
from delayedq.store import served_store
from delayedq.store.offers import check
from delayedq.store.protocol import Finish, GiveBack
from delayedq.tasks import current_attempt, parameters_of
from delayedq.worker.reporting import write_last

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime
    from types import TracebackType

    from delayedq.models import MessageQuerySet
    from delayedq.store.protocol import Claimed, Offer, Settled, Transition
    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt

# Whether an attempt may start, and whether another one may follow an error: `expires`, `deadline`, `retry_on`.


logger = logging.getLogger("delayedq")


def may_be_late(attempt: Attempt) -> bool:
    """Whether `check_in_time` has anything to check; it may ask the database then."""
    return attempt.expires is not None or attempt.deadline is not None


def check_in_time(attempt: Attempt) -> None:
    """Raise Expired or DeadlineExceeded for an attempt that starts too late."""
    expires, deadline = attempt.expires, attempt.deadline
    is_late = expires is not None and attempt.attempt == 1 and _is_past(later(attempt.scheduled_at, expires))
    if is_late and not _has_started(attempt):
        raise Expired(f"It was not started within {expires} after it was due.")
    if deadline is not None and _is_past(later(attempt.scheduled_at_initially, deadline)):
        raise DeadlineExceeded(f"It did not end within {deadline} after it was first due.")


def _has_started(attempt: Attempt) -> bool:
    """In an attempt that was not charged: one that was snoozed, or whose worker gave it up after a step."""
    started = own(attempt.claimed.metadata, STARTED)
    return started in (True, _life(attempt)) or has_steps(served_store(), attempt.claimed)


def _life(attempt: Attempt) -> str:
    """What changes where a message is brought back after its end: it has not started then."""
    return attempt.scheduled_at_initially.isoformat()


def with_start(ended: AttemptResult) -> str | None:
    """The metadata of a message that might expire, and is snoozed after it has started; None: as it was."""
    attempt, metadata = ended.attempt, ended.attempt.claimed.metadata
    is_first = ended.started is not None and attempt.attempt == 1
    if not is_first or not isinstance(ended.outcome, AskedSnooze) or attempt.expires is None:
        return None
    return None if own(metadata, STARTED) == _life(attempt) else with_own(metadata, {STARTED: _life(attempt)})


def _is_past(moment: datetime) -> bool:
    """By the database's clock; that is read only if the host's clock says so too."""
    return clock.now() >= moment and served_store().now() >= moment


def retried(attempt: Attempt, outcome: Raised | AskedRetry, error: BaseException) -> Raised | AskedRetry:
    """The outcome, or that of a permanent failure if no attempt may follow the error."""
    if isinstance(outcome, Raised) and not _may_retry(attempt, error):
        return Raised(permanent=True)
    left = attempt.left()
    if left is None:
        return outcome
    delay = _delay(attempt) if outcome.delay is None else outcome.delay
    if delay is None or max(delay, timedelta()) < left:
        return replace(outcome, delay=delay)
    error.add_note(f"No attempt follows: it must have ended {attempt.deadline} after it was first due.")
    return Raised(permanent=True)


def _may_retry(attempt: Attempt, error: BaseException) -> bool:
    task = attempt.task
    if task.retry_on is None and task.give_up_on is None:
        return True
    try:
        return may_retry(error, task.retry_on, task.give_up_on)
    except Exception:
        logger.exception("What retry_on or give_up_on of %s calls failed; another attempt may follow.", attempt.kind)
        return True


def _delay(attempt: Attempt) -> timedelta | None:
    """None if the backoff of the task fails; `decision` reports that."""
    try:
        return attempt.backoff(attempt.attempt)
    except Exception:  # noqa: BLE001
        return None


# What a task has enqueued where one of its messages ends or is given back: `on_success`, `on_failure`, `on_retry`.
#
# The messages are made here, and stored by `Store.settle`, in the transaction that ends the message: both or neither.


def follow_up_of(attempt: Attempt, decided: Decision) -> Task[..., Any] | None:
    """The task that follows this decision; None if there is none."""
    if not attempt.is_known:
        return None
    match decided.outcome:
        case FinalOutcome.SUCCEEDED:
            return cast("Task[..., Any] | None", attempt.task.on_success)
        case FinalOutcome.FAILED:
            return cast("Task[..., Any] | None", attempt.task.on_failure)
        case None if decided.charged:
            return cast("Task[..., Any] | None", attempt.task.on_retry)
    return None


def follow_ups(attempt: Attempt, decided: Decision) -> tuple[Offer, ...]:
    """The messages to store with this decision."""
    task = follow_up_of(attempt, decided)
    return () if task is None else _messages(attempt, task)


def _messages(attempt: Attempt, task: Task[..., Any]) -> tuple[Offer, ...]:
    context = current_attempt.set(attempt)  # they are the attempt's, as what its task enqueues
    try:
        # An end waits for no producer and is not refused: a follow-up is stored also where its limit is full.
        offer = task.offer([str(attempt.id)], {}, when=task.run_after)._replace(sizes=())
        check(as_stored(offer))  # in the transaction of the end it would be too late
    except Exception:
        logger.exception("%r ends without what follows: no message of %s can be made.", attempt, task.name)
        return ()
    else:
        return (offer,)
    finally:
        current_attempt.reset(context)


# Exactly once: what a task writes into the queue's database and the end of its message commit together, or not at all.
#
# The message is claimed and leased like any other, and no row of the queue is locked while its task runs: the keeper
# renews its lease. The last statement of the transaction ends the message under that lease: nothing commits without
# it.


@contextmanager
def exactly_once(attempt: Attempt) -> Iterator[ExactlyOnceCommit]:
    """A transaction whose last statement is that of `ExactlyOnceCommit.end`. Errors after its commit are logged."""
    commit = ExactlyOnceCommit(attempt)
    try:
        with transaction.atomic(using=commit.alias):
            transaction.on_commit(commit.confirm, using=commit.alias)
            yield commit
    except BaseException as error:
        if not commit.committed():
            attempt.written = None  # that was rolled back
            if isinstance(error, LeaseLost):
                refuse_own_end(attempt.claimed, commit.alias)
            raise
        logger.exception("%r has succeeded, but what followed its commit failed.", attempt)


def refuse_own_end(claimed: Claimed, alias: str) -> None:
    """Raise a LeaseLost that names the cure if the lease holds again, since the transaction that ended was rolled back.

    Then it was this transaction that had cancelled or deleted the message, and nobody else.
    """
    held = False
    with suppress(Error):
        held = _under_lease(claimed, alias).leased().exists()
    if held:
        raise LeaseLost(
            f"What {claimed.kind} did has ended its own message {claimed.id} in the transaction that shall end it, so "
            "all of that was rolled back. A task ends its own message by raising delayedq.Cancel()."
        ) from None


def _under_lease(claimed: Claimed, alias: str) -> MessageQuerySet:
    """The message, unless another attempt holds it, or it has ended."""
    return Message.objects.using(alias).filter(id=claimed.id, lease_token=claimed.token)


class ExactlyOnceCommit:
    """One attempt whose effects and end share a transaction. `settled` is None until its end is written."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._store = served_store()
        self._confirmed = False
        self.alias = self._store.alias
        self.settled: Settled | None = None

    def end(self, outcome: Returned, started: float) -> None:
        """End the message as succeeded; `started` is a moment of `time.monotonic()`.

        Waits for a transaction that has locked it, as long as the lease lasts. Raises LeaseLost. A message that was
        replaced meanwhile is given back: the replacement is a message of its own, and what this attempt did stands.
        """
        age = time.monotonic() - started
        then = follow_ups(self._attempt, Decision(FinalOutcome.SUCCEEDED))
        kept = self._attempt.task.result_retention
        self._write_progress()
        finish = Finish(self._attempt.claimed, FinalOutcome.SUCCEEDED, age, 0.0, outcome.result, None, then, kept)
        settled = self._store.settle_waiting([finish], self._attempt.worker, lambda: self._held().leased().exists())
        if settled.lost or settled.busy:
            raise LeaseLost("The lease ended before the task did: what the task wrote was rolled back.")
        self.settled = settled

    def _write_progress(self) -> None:
        """The worker's thread may wait for this transaction with an older report: nobody waits for that."""
        if not self._attempt.is_written:
            with transaction.atomic(using=self.alias):
                write_last([self._attempt], patience=0.0)

    def _held(self) -> MessageQuerySet:
        return _under_lease(self._attempt.claimed, self.alias)

    def _given_back(self) -> bool:
        """True if a message that was replaced has been given back: it has no history row, but its lease is gone."""
        return self.settled is not None and bool(self.settled.superseded) and not self._held().exists()

    def confirm(self) -> None:
        """Called first of all that follows the commit."""
        self._confirmed = True
        with suppress(Error):
            self._store.tell_ends()

    def committed(self) -> bool:
        """True if the transaction has committed, also if the answer to its COMMIT was lost. Asks the database then."""
        return self._confirmed or (self.settled is not None and self._recorded())

    def _recorded(self) -> bool:
        """The connection was lost in the commit: ask how the message ended, as soon as the database answers.

        If the server has not finished the commit yet, the answer is no. That does no harm: the failure that follows
        is settled under the lease, which the commit takes away.
        """
        failures = 0
        while True:
            try:
                connections[self.alias].close()
                return bool(self._store.in_history([self._attempt.id])) or self._given_back()
            except Error:
                failures += 1
                time.sleep(RECONNECTING(failures).total_seconds())


# Executor


#: Seconds, on average, until a message is tried again whose task had no connection to begin with.
CONNECTION_PAUSE = 2.0

_RETURNED_NONE = Returned()

TAG_MARK = f'"{TAG}"'


class AttemptResult(NamedTuple):
    """How an attempt ended, in moments of `time.monotonic()`; `started` is None if the task never ran.

    `decide()` makes of it a final outcome or a retry. `settled`: the store's answer, if an exactly-once task has
    committed the end of its message already.
    """

    attempt: Attempt
    outcome: Outcome
    started: float | None
    finished: float
    error: BaseException | None = None
    settled: Settled | None = None


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
        if TAG_MARK in attempt.claimed.payload or run.must_ask():  # which may take queries
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
        if self.must_ask():
            self._ask_whether_to_start()
        task = self.attempt.task
        self.args, self.kwargs = load_call(self.attempt.claimed.payload)
        announced = wanted(task_started, logging.INFO)
        if announced or task.takes_context:
            self._result = results.running(self.attempt, self.args, self.kwargs)
        if announced:
            task_started.send_robust(type(task.get_backend()), task_result=self._result)
        if task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]

    def must_ask(self) -> bool:
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


# The way of an attempt: `AttemptResult` -> `decide()` -> `Decision` -> the transition that the store makes.


HUNG = f"{WorkerHung.__module__}.{WorkerHung.__qualname__}"


def decision(ended: AttemptResult) -> Decision:
    """What becomes of the message. A backoff function of the task that fails is replaced by the default."""
    attempt = ended.attempt
    try:
        return decide(ended.outcome, attempt.attempt, attempt.max_attempts, attempt.backoff)
    except BaseException:
        logger.exception("The backoff of %s failed; the default one is used.", attempt.kind)
        return decide(ended.outcome, attempt.attempt, attempt.max_attempts, Exponential())


def transition(ended: AttemptResult, decided: Decision, now: float) -> Transition:
    """What the store shall do. Its clock is another one, so times are given as seconds before `now`."""
    claimed = ended.attempt.claimed
    started = None if ended.started is None else now - ended.started
    finished = now - ended.finished
    if isinstance(ended.outcome, Returned):
        task = ended.attempt.task
        then = () if task.on_success is None else follow_ups(ended.attempt, decided)
        retention = task.result_retention
        return Finish(claimed, FinalOutcome.SUCCEEDED, started, finished, ended.outcome.result, None, then, retention)
    errors, then = _errors(ended), follow_ups(ended.attempt, decided)
    if decided.outcome is None:
        delay, until = decided.delay, decided.until
        return GiveBack(claimed, decided.charged, started, finished, delay, until, errors, with_start(ended), then)
    return Finish(claimed, decided.outcome, started, finished, None, errors, then)


def send_signals(ended: AttemptResult, decided: Decision) -> None:
    """Send the signal of a message that failed, or will be retried; and `task_finished` if its task could not start.

    The executor sends `task_finished` for what has run, in the thread of the task.
    """
    could_not_start = ended.started is None or isinstance(ended.error, ArgumentsMismatch)
    if could_not_start and decided.outcome is not None and wanted(task_finished, logging.ERROR):
        result = results.not_started(ended.attempt, ended.outcome, ended.error, counted=ended.started is not None)
        task_finished.send_robust(type(result.task.get_backend()), task_result=result)
    claimed = ended.attempt.claimed
    error = f"{type(ended.error).__name__}: {results.text_of(ended.error, error_text(claimed.kind, claimed.payload))}"
    trace = results.masked_trace(claimed, ended.error)
    if decided.outcome is FinalOutcome.FAILED:
        signals.message_failed.send_robust(
            claimed.kind, claimed=claimed, error=error, exception=ended.error, masked_trace=trace
        )
    elif decided.outcome is None and decided.charged:
        signals.message_retrying.send_robust(
            claimed.kind,
            claimed=claimed,
            error=error,
            delay=decided.delay,
            exception=ended.error,
            masked_trace=trace,
        )


def vanished(claimed: Claimed) -> int:
    """How many attempts since the last error of the task have no result: their worker was killed, hung, or lost its
    lease.
    """
    if claimed.attempt <= 1:
        return 0
    known = [record["attempt"] for record in known_errors(claimed.errors) if record.get("exception") != HUNG]
    return max(0, claimed.attempt - 1 - (known[-1] if known else 0))


def is_spent(claimed: Claimed, spare: int = 0) -> bool:
    """Whether its worker vanished in the last attempt that it had, or in so many more."""
    return claimed.attempt > claimed.max_attempts + spare and vanished(claimed) > 0


def vanished_error(claimed: Claimed) -> WorkerVanished:
    """Why a message whose worker vanished in its last attempt is a dead letter."""
    hung = [record for record in known_errors(claimed.errors) if record.get("exception") == HUNG]
    why = f" {hung[-1].get('message')}" if hung else ""
    return WorkerVanished(f"Its worker vanished in {vanished(claimed)} of its attempts.{why}")


def _errors(ended: AttemptResult) -> str | None:
    """The message's list of errors with this one; None if there is nothing to add."""
    if ended.error is None or isinstance(ended.outcome, AskedSnooze | NotStarted):
        return None
    seconds = None if ended.started is None else ended.finished - ended.started
    return results.errors_with(ended.attempt.claimed, ended.error, ended.attempt.worker, seconds)
