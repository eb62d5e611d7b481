"""From how an attempt ended to what the store shall do about it, and whom to tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from delayedq import results, signals
from delayedq.core.backoff import Exponential
from delayedq.core.lifecycle import AskedSnooze, Decision, Ending, NotStarted, Returned, decide
from delayedq.store.protocol import Finish, GiveBack

if TYPE_CHECKING:
    from delayedq.store.protocol import Claimed, Transition
    from delayedq.worker.executor import Ended

logger = logging.getLogger("delayedq")


def decision(ended: Ended) -> Decision:
    attempt = ended.attempt
    try:
        return decide(ended.outcome, attempt.attempt, attempt.max_attempts, attempt.backoff)
    except BaseException:
        logger.exception("The backoff of %s failed; the default one is used.", attempt.kind)
        return decide(ended.outcome, attempt.attempt, attempt.max_attempts, Exponential())


def transition(ended: Ended, decided: Decision, now: float) -> Transition:
    """`now` is `time.monotonic()`: the store is told how long ago things happened, and dates them by its own clock."""
    claimed = ended.attempt.claimed
    started = None if ended.started is None else now - ended.started
    finished = now - ended.finished
    if isinstance(ended.outcome, Returned):
        return Finish(claimed, Ending.SUCCEEDED, started, finished, ended.outcome.result)
    errors = _errors(ended)
    if decided.ending is None:
        return GiveBack(claimed, decided.charged, started, finished, decided.delay, decided.until, errors)
    return Finish(claimed, decided.ending, started, finished, None, errors)


def announce(ended: Ended, decided: Decision) -> None:
    """Tell the listeners of what did not simply succeed."""
    claimed, error = ended.attempt.claimed, f"{type(ended.error).__name__}: {results.text_of(ended.error)}"
    if decided.ending is Ending.FAILED:
        signals.message_failed.send_robust(claimed.kind, claimed=claimed, error=error)
    elif decided.ending is None and decided.charged:
        signals.message_retrying.send_robust(claimed.kind, claimed=claimed, error=error, delay=decided.delay)


def vanished(claimed: Claimed) -> int:
    """How many attempts since the last known error ended without a word: their worker was killed, or lost its lease."""
    if claimed.attempt <= 1:
        return 0
    known = results.known_errors(claimed)
    return max(0, claimed.attempt - 1 - (known[-1]["attempt"] if known else 0))


def _errors(ended: Ended) -> str | None:
    """The message's list of errors with this one; None if there is nothing to add."""
    if ended.error is None or isinstance(ended.outcome, AskedSnooze | NotStarted):
        return None
    seconds = None if ended.started is None else ended.finished - ended.started
    return results.errors_with(ended.attempt.claimed, ended.error, ended.attempt.worker, seconds)
