"""From how an attempt ended to what the store does: may it start, may another follow, what ends and what goes back."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from delayedq import clock, results, signals
from delayedq.compat import task_finished
from delayedq.core.backoff import Exponential
from delayedq.core.errors import known_errors, may_retry
from delayedq.core.lifecycle import (
    AskedRetry,
    AskedSnooze,
    Decision,
    FinalOutcome,
    NotStarted,
    Outcome,
    Raised,
    Returned,
    decide,
)
from delayedq.core.metadata import STARTED, own, with_own
from delayedq.cron.ticks import later
from delayedq.exceptions import (
    ArgumentsMismatch,
    DeadlineExceeded,
    Expired,
    WorkerHung,
    WorkerVanished,
)
from delayedq.limits.offers import as_stored
from delayedq.masking import error_text
from delayedq.signals import wanted
from delayedq.steps.store import has_steps
from delayedq.store import served_store
from delayedq.store.offers import check
from delayedq.store.protocol import Finish, GiveBack
from delayedq.tasks import current_attempt

if TYPE_CHECKING:
    from datetime import datetime

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
    return results.errors_with(ended.attempt.claimed, ended.error, ended.attempt.worker, seconds, ended.attempt.log)
