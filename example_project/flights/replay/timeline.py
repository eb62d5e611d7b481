"""The recorded day as a sequence of events. No database; the time is passed in.

For each flight:

- 8 hours before its scheduled departure it is announced, and its reminder scheduled;
- 6 hours before, the actual departure or a cancellation becomes known: the reminder is moved or cancelled;
- 1 hour before it actually leaves, the reminder is due.

There is one change per flight, 5 hours before the old reminder would be due. So no reminder is replaced while it runs
(which would correctly run it once more), and each flight that leaves must have exactly one delivery. 5 hours of the
recorded day are about 3 seconds of the replay. `Event.overtaken` detects a machine that is too slow even for that.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from example_project.flights.models import LEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

NEW_YORK = ZoneInfo("America/New_York")
RECORD = Path(__file__).parent.parent / "data" / "2013-03-08.csv"
DAY = datetime.fromisoformat(RECORD.stem).date()

ANNOUNCED_BEFORE = timedelta(hours=8)
KNOWN_BEFORE = timedelta(hours=6)


class Departure(NamedTuple):
    """A line of the record. `left_at`: the actual departure; None if the flight was cancelled."""

    scheduled_at: datetime
    left_at: datetime | None
    carrier: str
    number: int
    origin: str
    destination: str


class News(Enum):
    ANNOUNCED = auto()
    MOVED = auto()
    CANCELLED = auto()


class Event(NamedTuple):
    at: datetime
    news: News
    departure: Departure

    def overtaken(self, now: datetime) -> bool:
        """Whether the event comes too late: the reminder that it moves or cancels is already due."""
        return self.news is not News.ANNOUNCED and now >= self.departure.scheduled_at - LEAD


@dataclass(frozen=True)
class Clock:
    """Maps the recorded day, from `opens`, onto the seconds after `started`."""

    opens: datetime
    started: datetime
    speed: float

    @classmethod
    def spanning(cls, opens: datetime, closes: datetime, seconds: float, started: datetime) -> Clock:
        return cls(opens, started, (closes - opens).total_seconds() / seconds)

    def real(self, recorded: datetime) -> datetime:
        return self.started + (recorded - self.opens) / self.speed

    def recorded(self, real: datetime) -> datetime:
        return self.opens + (real - self.started) * self.speed


def read_record(path: Path = RECORD) -> list[Departure]:
    with path.open(newline="") as lines:
        return [
            Departure(
                _instant(line["scheduled_departure"]),
                _instant(line["departure"]) if line["departure"] else None,
                line["carrier"],
                int(line["number"]),
                line["origin"],
                line["destination"],
            )
            for line in csv.DictReader(lines)
        ]


def timeline(departures: Iterable[Departure]) -> list[Event]:
    events = (event for departure in departures for event in _story(departure))
    return sorted(events, key=attrgetter("at"))


def last_reminder(departures: Iterable[Departure]) -> datetime:
    return max(departure.left_at for departure in departures if departure.left_at) - LEAD


def _story(departure: Departure) -> Iterable[Event]:
    yield Event(departure.scheduled_at - ANNOUNCED_BEFORE, News.ANNOUNCED, departure)
    known_at = departure.scheduled_at - KNOWN_BEFORE
    if departure.left_at is None:
        yield Event(known_at, News.CANCELLED, departure)
    elif departure.left_at != departure.scheduled_at:
        yield Event(known_at, News.MOVED, departure)


def _instant(local: str) -> datetime:
    return datetime.fromisoformat(local).replace(tzinfo=NEW_YORK).astimezone(UTC)
