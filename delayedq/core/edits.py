"""Changes of waiting messages by an operator: each computes a message's new place. Pure functions on values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from delayedq.core.bounds import EARLIEST

#: The latest time that an edit moves a message to; all databases can store it.
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100

#: The golden ratio: multiples of it modulo 1 are spread evenly, whatever their number, as each falls into the largest
#: gap between those before it. The number of messages need not be known in advance.
GOLDEN = 0.6180339887498949


class LanePosition(NamedTuple):
    """The due time, queue and priority of a waiting message."""

    scheduled_at: datetime
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class RunNow:
    """Make messages due now. Those that are due already keep their time, and so their order."""

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(scheduled_at=min(place.scheduled_at, now))


@dataclass(frozen=True, slots=True)
class Reschedule:
    at: datetime

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(scheduled_at=within_time(self.at))


@dataclass(frozen=True, slots=True)
class Shift:
    """Move by `by`, which may be negative."""

    by: timedelta

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(scheduled_at=later(place.scheduled_at, self.by))


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribute messages evenly over a period; `jitter` (0 to 1) is the share of the period that is random."""

    start: datetime
    period: timedelta
    jitter: float = 0.0

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(scheduled_at=self.at(rank, draw))

    def at(self, rank: int, draw: float) -> datetime:
        """The time of the message number `rank`; `draw` is a random number from 0 to 1."""
        return later(self.start, self.period * ((rank * GOLDEN + self.jitter * draw) % 1))


@dataclass(frozen=True, slots=True)
class Prioritize:
    priority: int

    def __post_init__(self) -> None:
        if not LOWEST_PRIORITY <= self.priority <= HIGHEST_PRIORITY:
            raise ValueError(f"A priority is a number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}.")

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(priority=self.priority)


@dataclass(frozen=True, slots=True)
class Reroute:
    queue: str

    def __call__(self, place: LanePosition, now: datetime, rank: int, draw: float) -> LanePosition:  # noqa: ARG002
        return place._replace(queue=self.queue)


Change = RunNow | Reschedule | Shift | Spread | Prioritize | Reroute


def later(moment: datetime, delay: timedelta) -> datetime:
    """`moment + delay`, limited to the range that can be stored."""
    try:
        return within_time(moment + delay)
    except OverflowError:
        return LATEST if delay > timedelta(0) else EARLIEST


def within_time(moment: datetime) -> datetime:
    return min(max(moment, EARLIEST), LATEST)
