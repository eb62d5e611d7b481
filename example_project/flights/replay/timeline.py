"""The recorded day, and the order in which it becomes known. No database, no clock but the one passed in.

What the site knows, and when:

- eight hours before its scheduled departure a flight is announced, and its reminder scheduled;
- six hours before, the airline says when it will really leave, or that it won't: the reminder moves, or is dropped;
- one hour before it really leaves, the reminder is due.

The truth comes once per flight, and five hours before the reminder that it replaces is due. So no reminder moves while
it runs (which would rightly run it once more), and each flight that leaves has exactly one delivery to expect. Five
hours of that day are about three seconds of the replay. `Event.overtaken` tells if a machine is too slow even for that.
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
    """A line of the record. `left_at` None: cancelled."""

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
        """Came too late: the reminder that it moves or drops is due."""
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
