"""Whether an attempt may start, and whether another one may follow an error: `expires`, `deadline`, `retry_on`."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq import clock
from delayedq.core.error_choice import may_retry
from delayedq.core.lifecycle import AskedRetry, AskedSnooze, Raised
from delayedq.core.metadata import STARTED, own, with_own
from delayedq.core.ticks import later
from delayedq.exceptions import DeadlineExceeded, Expired
from delayedq.store import served_store
from delayedq.store.steps import has_steps

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.worker.attempt import Attempt
    from delayedq.worker.executor import AttemptResult

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
    """None if the backoff of the task fails; `transitions.decision` reports that."""
    try:
        return attempt.backoff(attempt.attempt)
    except Exception:  # noqa: BLE001
        return None
