"""Where an operator's change puts a waiting message. Pure: values in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

#: What any of the databases can store.
EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100

#: Each step by this part of a circle falls into the largest gap that the steps before it left, however many they were:
#: the golden ratio. So messages are spread evenly before anybody knows how many there will be.
GOLDEN = 0.6180339887498949


class Place(NamedTuple):
    """When and where a message waits."""

    scheduled_at: datetime
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class RunNow:
    """What is due already keeps its place in the order."""

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
        return place._replace(scheduled_at=min(place.scheduled_at, now))


@dataclass(frozen=True, slots=True)
class Reschedule:
    at: datetime

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
        return place._replace(scheduled_at=within_time(self.at))


@dataclass(frozen=True, slots=True)
class Shift:
    """By a time that may be negative."""

    by: timedelta

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
        return place._replace(scheduled_at=later(place.scheduled_at, self.by))


@dataclass(frozen=True, slots=True)
class Spread:
    """Evenly over a period, one message here and the next one there; `jitter` is the share of it that is random."""

    start: datetime
    period: timedelta
    jitter: float = 0.0

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
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

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
        return place._replace(priority=self.priority)


@dataclass(frozen=True, slots=True)
class Reroute:
    queue: str

    def __call__(self, place: Place, now: datetime, rank: int, draw: float) -> Place:  # noqa: ARG002
        return place._replace(queue=self.queue)


Change = RunNow | Reschedule | Shift | Spread | Prioritize | Reroute


def later(moment: datetime, delay: timedelta) -> datetime:
    """The sum, as far as it can be stored."""
    try:
        return within_time(moment + delay)
    except OverflowError:
        return LATEST if delay > timedelta(0) else EARLIEST


def within_time(moment: datetime) -> datetime:
    return min(max(moment, EARLIEST), LATEST)
