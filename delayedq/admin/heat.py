"""The forecast as a heat map: one row per hour with a cell per minute, or one row per day with a cell per hour."""

from __future__ import annotations

from itertools import batched
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

from django.utils import timezone

from delayedq.operations.forecast import Ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.operations.forecast import Minute

LEVELS = 5
HOURS = range(24)


class Cell(NamedTuple):
    """`level`: 0 (nothing due) to LEVELS. `title`: its tooltip."""

    level: int = 0
    title: str = ""
    stampede: bool = False


class Row(NamedTuple):
    label: str
    cells: Sequence[Cell]


class Hour(NamedTuple):
    """A row of the table that shows the same numbers as text."""

    start: datetime
    due: int
    busiest: Minute


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
                Cell(level(m.due, most), f"{_text(m.start)}: {m.due:,} due" if m.due else "", m.start in starts)
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
        cells = days.setdefault(f"{local:%a %d}", [Cell()] * len(HOURS))
        title = f"{_text(hour.start)}: {hour.due:,} due, at most {hour.busiest.due:,} in a minute" if hour.due else ""
        hot = Cell(level(hour.busiest.due, most), title, hour.busiest.start in starts)
        cells[local.hour] = max(cells[local.hour], hot)
    columns = [f"{hour:02}" if hour % 3 == 0 else "" for hour in HOURS]
    return HeatMap(columns, [Row(day, cells) for day, cells in days.items()])


def level(due: int, most: int) -> int:
    """The square root keeps small counts visible beside large ones."""
    return ceil(LEVELS * sqrt(due / most)) if due else 0


def _text(start: datetime) -> str:
    return f"{timezone.localtime(start):%a %H:%M}"
