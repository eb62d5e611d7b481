"""How an attempt ended, and what that makes of its message. Pure: values in, values out.

an attempt            attempts left        none left
──────────────────    ─────────────────    ──────────
Returned              succeeded            succeeded
Raised                waits (backoff)      failed
AskedRetry            waits (its delay)    failed
AskedSnooze           waits, uncharged     waits, uncharged
AskedCancel           cancelled            cancelled
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
    """The task raised, or took too long."""


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
class Impossible:
    """Trying again can't help: the task is gone, its arguments don't fit, its result can't be stored."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker gives it back."""


Outcome = Returned | Raised | AskedRetry | AskedSnooze | AskedCancel | Impossible | NotStarted


class Ending(StrEnum):
    """How a message ends at the hands of a worker; the outcome in its history."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Decision:
    """`ending` None: the message waits, and `charged`, `delay` (seconds) and `until` say how."""

    ending: Ending | None
    charged: bool = True
    delay: float | None = None
    until: datetime | None = None


_SUCCEEDED = Decision(Ending.SUCCEEDED)


def decide(outcome: Outcome, attempt: int, max_attempts: int, backoff: Callable[[int], timedelta]) -> Decision:
    """What an outcome of attempt number `attempt` makes of its message."""
    match outcome:
        case Returned():
            return _SUCCEEDED
        case AskedSnooze(delay, until):
            return Decision(None, charged=False, delay=None if delay is None else _seconds(delay), until=until)
        case NotStarted():
            return Decision(None, charged=False)
        case AskedCancel():
            return Decision(Ending.CANCELLED)
        case Raised() | AskedRetry() if attempt < max_attempts:
            delay = outcome.delay if isinstance(outcome, AskedRetry) else None
            return Decision(None, delay=_seconds(backoff(attempt) if delay is None else delay))
        case _:
            return Decision(Ending.FAILED)


def _seconds(delay: timedelta) -> float:
    """No message waits longer than a century: the sum of the delay and now must be a time."""
    return min(max(delay.total_seconds(), 0.0), CENTURY)
