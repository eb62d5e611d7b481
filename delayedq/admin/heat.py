"""The forecast as a heat map: one row per hour with a cell per minute, or one row per day with a cell per hour."""

from __future__ import annotations

from datetime import timedelta
from itertools import batched
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.utils import timezone
from django.utils.dateformat import format as formatted
from django.utils.translation import gettext as _

from delayedq.operations.forecast import MINUTE, Ahead
from delayedq.operations.wording import exact, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.operations.forecast import Minute

LEVELS = 5
HOURS = range(24)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


class Cell(NamedTuple):
    """`level`: 0 (nothing due) to LEVELS. `title`: its tooltip. `query`: that of the list of its messages."""

    level: int = 0
    title: str = ""
    stampede: bool = False
    query: str = ""


class Row(NamedTuple):
    label: str
    cells: Sequence[Cell]


class Hour(NamedTuple):
    """A row of the table that shows the same numbers as text."""

    start: datetime
    due: int
    busiest: Minute

    @property
    def at(self) -> str:
        return exact(self.start)

    @property
    def busiest_at(self) -> str:
        return exact(self.busiest.start)

    @property
    def query(self) -> str:
        return query_of(self.start, HOUR)


class HeatMap(NamedTuple):
    columns: list[str]
    rows: list[Row]


def hours(minutes: Iterable[Minute]) -> list[Hour]:
    return [
        Hour(part[0].start, sum(minute.due for minute in part), max(part, key=lambda minute: minute.due))
        for part in batched(minutes, 60)
    ]


def heat_map(ahead: Ahead, minutes: Sequence[Minute], stampeding: Sequence[Minute]) -> HeatMap:
    most = max(minute.due for minute in minutes)
    starts = {minute.start for minute in stampeding}
    return _by_minute(minutes, most, starts) if ahead is Ahead.DAY else _by_hour(minutes, most, starts)


def _by_minute(minutes: Sequence[Minute], most: int, starts: set[datetime]) -> HeatMap:
    columns = [f":{minute:02}" if minute % 10 == 0 else "" for minute in range(60)]
    rows = [
        Row(
            f"{timezone.localtime(part[0].start):%H:%M}",
            [
                Cell(level(m.due, most), _of_minute(m), m.start in starts, query_of(m.start, MINUTE))
                if m.due
                else Cell()
                for m in part
            ],
        )
        for part in batched(minutes, 60)
    ]
    return HeatMap(columns, rows)


def _by_hour(minutes: Sequence[Minute], most: int, starts: set[datetime]) -> HeatMap:
    """The first and last day are partial. An hour that occurs twice (end of daylight saving) shares one cell."""
    days: dict[str, list[Cell]] = {}
    for hour in hours(minutes):
        local = timezone.localtime(hour.start)
        cells = days.setdefault(formatted(local, "D d"), [Cell()] * len(HOURS))
        if hour.due:
            hot = Cell(level(hour.busiest.due, most), _of_hour(hour), hour.busiest.start in starts, hour.query)
            cells[local.hour] = max(cells[local.hour], hot)
    columns = [f"{hour:02}" if hour % 3 == 0 else "" for hour in HOURS]
    return HeatMap(columns, [Row(day, cells) for day, cells in days.items()])


def query_of(start: datetime, length: timedelta) -> str:
    """The query of the message list that shows what falls due then."""
    return urlencode({"since": start.isoformat(), "until": (start + length - SECOND).isoformat()})


def level(due: int, most: int) -> int:
    """The square root keeps small counts visible beside large ones."""
    return ceil(LEVELS * sqrt(due / most)) if due else 0


def _of_minute(minute: Minute) -> str:
    return _("%(time)s: %(count)s due") % {"time": exact(minute.start), "count": grouped(minute.due)}


def _of_hour(hour: Hour) -> str:
    words = _("%(time)s: %(count)s due, at most %(most)s in a minute")
    return words % {"time": hour.at, "count": grouped(hour.due), "most": grouped(hour.busiest.due)}
