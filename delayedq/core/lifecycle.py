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
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

KEY_LENGTH = 200
NAME_LENGTH = 200
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


class End(Enum):
    """What becomes of the message."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Decision:
    """`charged`, `delay` (seconds) and `until` only matter for a message that waits."""

    end: End
    charged: bool = True
    delay: float | None = None
    until: datetime | None = None


_SUCCEEDED = Decision(End.SUCCEEDED)


def decide(outcome: Outcome, attempt: int, max_attempts: int, backoff: Callable[[int], timedelta]) -> Decision:
    """What an outcome of attempt number `attempt` makes of its message."""
    match outcome:
        case Returned():
            return _SUCCEEDED
        case AskedSnooze(delay, until):
            return Decision(End.WAITS, charged=False, delay=None if delay is None else _seconds(delay), until=until)
        case NotStarted():
            return Decision(End.WAITS, charged=False)
        case AskedCancel():
            return Decision(End.CANCELLED)
        case Raised() | AskedRetry() if attempt < max_attempts:
            delay = outcome.delay if isinstance(outcome, AskedRetry) else None
            return Decision(End.WAITS, delay=_seconds(backoff(attempt) if delay is None else delay))
        case _:
            return Decision(End.FAILED)


def _seconds(delay: timedelta) -> float:
    """No message waits longer than a century: the sum of the delay and now must be a time."""
    return min(max(delay.total_seconds(), 0.0), CENTURY)
