"""The way of an attempt: `AttemptResult` -> `decide()` -> `Decision` -> the transition that the store makes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from delayedq import results, signals
from delayedq.compat import task_finished
from delayedq.core.backoff import Exponential
from delayedq.core.error_records import known_errors
from delayedq.core.lifecycle import AskedSnooze, Decision, FinalOutcome, NotStarted, Returned, decide
from delayedq.exceptions import ArgumentsMismatch, WorkerHung, WorkerVanished
from delayedq.masking import error_text
from delayedq.signals import wanted
from delayedq.store.protocol import Finish, GiveBack
from delayedq.worker.follow_ups import follow_ups
from delayedq.worker.retrying import with_start

if TYPE_CHECKING:
    from delayedq.store.protocol import Claimed, Transition
    from delayedq.worker.executor import AttemptResult

logger = logging.getLogger("delayedq")

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
