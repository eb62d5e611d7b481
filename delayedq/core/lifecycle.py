"""Decide what happens to a message from how its attempt ended. Pure functions on values.

an attempt            attempts left        none left
──────────────────    ─────────────────    ──────────
Returned              succeeded            succeeded
Raised                waits (backoff)      failed
Raised, permanent     failed               failed
AskedRetry            waits (its delay)    failed
AskedSnooze           waits, uncharged     waits, uncharged
AskedCancel           cancelled            cancelled
TooLate               expired              expired
Impossible            failed               failed
NotStarted            waits, uncharged     waits, uncharged
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

CENTURY = 100 * 365.25 * 86_400


@dataclass(frozen=True, slots=True)
class Returned:
    """The task returned; `result` is its JSON, or None for None."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The task raised, or took too long. `permanent`: no attempt follows. `delay` None: its backoff."""

    permanent: bool = False
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class AskedRetry:
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class AskedSnooze:
    delay: timedelta | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AskedCancel:
    pass


@dataclass(frozen=True, slots=True)
class TooLate:
    """It was not started in the time within which it was worth it."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """Another attempt can't succeed: the task is unknown, its arguments don't fit, its result can't be stored."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker gives the message back without having started the task; it may run after `delay`."""

    delay: timedelta | None = None


Outcome = Returned | Raised | AskedRetry | AskedSnooze | AskedCancel | TooLate | Impossible | NotStarted


class FinalOutcome(StrEnum):
    """How a worker ends a message: the outcome in its history."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a message. If `outcome` is None it waits, for `delay` (seconds) or until `until`.

    `charged`: the attempt counts.
    """

    outcome: FinalOutcome | None
    charged: bool = True
    delay: float | None = None
    until: datetime | None = None


#: How a message ends after these; after all others it has failed.
_ENDS = {AskedCancel: FinalOutcome.CANCELLED, TooLate: FinalOutcome.EXPIRED}
_SUCCEEDED = Decision(FinalOutcome.SUCCEEDED)


def decide(outcome: Outcome, attempt: int, max_attempts: int, backoff: Callable[[int], timedelta]) -> Decision:
    """Return what happens to a message after the given outcome of its attempt number `attempt` (1 is the first)."""
    match outcome:
        case Returned():
            return _SUCCEEDED
        case AskedSnooze(delay, until):
            return Decision(None, charged=False, delay=None if delay is None else _seconds(delay), until=until)
        case NotStarted(delay):
            return Decision(None, charged=False, delay=None if delay is None else _seconds(delay))
        case Raised(False, delay) | AskedRetry(delay) if attempt < max_attempts:
            return Decision(None, delay=_seconds(backoff(attempt) if delay is None else delay))
        case _:
            return Decision(final_outcome(outcome))


def final_outcome(outcome: Outcome) -> FinalOutcome:
    """How a message has ended whose last attempt ended so.

    >>> final_outcome(Impossible())
    <FinalOutcome.FAILED: 'failed'>
    """
    return FinalOutcome.SUCCEEDED if isinstance(outcome, Returned) else _ENDS.get(type(outcome), FinalOutcome.FAILED)


def is_final(outcome: Outcome, attempt: int, max_attempts: int) -> bool:
    """Whether a message ends with this outcome of its attempt number `attempt`: `decide` without the delay."""
    match outcome:
        case AskedSnooze() | NotStarted():
            return False
        case Raised(permanent=permanent):
            return permanent or attempt >= max_attempts
        case AskedRetry():
            return attempt >= max_attempts
        case _:
            return True


def _seconds(delay: timedelta) -> float:
    """The delay in seconds, from 0 to a century: now plus the delay must be a valid datetime."""
    return min(max(delay.total_seconds(), 0.0), CENTURY)
