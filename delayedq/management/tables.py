"""Schedules and their ticks, as tables for a terminal, or for a file, where no line is too long."""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from cron_descriptor import Options, get_description  # type: ignore[import-untyped]
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from delayedq.core.cron import SECOND, Cron, ticks, transition_after
from delayedq.core.cron_fields import ALIASES
from delayedq.cron.reading import last_tick
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, tzinfo

    from delayedq.core.cron import Every
    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick

    #: What is told of a schedule: lines, by their title.
    Record = dict[str, list[Text]]

UNLIMITED = 10_000
NOTHING = "There are no schedules in DELAYEDQ['CRON']."

#: Where cron expressions have the field of the seconds, if they have one.
SECONDS = 5

STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "retrying": "yellow"}

#: Clocks are changed twice a year, and where they are not any more, not again.
NO_CHANGE_AFTER = timedelta(days=550)
CHANGES = 2

#: A field of a cron expression in the syntax that all know.
PLAIN = re.compile(r"((\*|\d+|[a-z]{3})(-(\d+|[a-z]{3}))?(/\d+)?(,|$))+", re.IGNORECASE)


def console_on(stream: Any, *, no_color: bool = False, force_color: bool = False) -> Console:
    """As wide as the terminal, if the stream is one."""
    return Console(
        file=stream,
        width=None if stream.isatty() else UNLIMITED,
        color_system=None if no_color else "auto",
        force_terminal=force_color or None,
        markup=False,
        highlight=False,
        emoji=False,
    )


# cron list


def show_schedules(console: Console, definitions: Iterable[Definition]) -> None:
    """Each with what it does, when, its last tick with its outcome, and its next one: as compact as there is room."""
    now = default_store().now()
    records = [_record(definition, now) for definition in definitions]
    if not records:
        console.print(NOTHING)
        return
    layouts = [_rows(records, ", "), _rows(records, "\n"), _paragraphs(records)]
    anywhere = console.options.update(max_width=UNLIMITED)
    fitting = (table for table in layouts if console.measure(table, options=anywhere).maximum <= console.width)
    console.print(next(fitting, layouts[-1]))


def _record(definition: Definition, now: datetime) -> Record:
    zone = _zone(definition)
    last = last_tick(default_store(), definition.name, now)
    following = definition.schedule.next_after(now) if definition.enabled else None
    never = "never" if definition.enabled else "disabled"
    return {
        "schedule": [Text(definition.name, "bold")],
        "task": [Text(definition.offer.kind)],
        "when": [Text(line) for line in describe(definition)],
        "last tick": _last(last, zone) if last else [Text("none yet")],
        "next tick": _both(following, zone) if following else [Text(never, "yellow")],
    }


def _rows(records: list[Record], separator: str) -> Table:
    """One row for each schedule."""
    table = _table(*records[0], leading=separator.count("\n"))
    for record in records:
        table.add_row(*(Text(separator).join(lines) for lines in record.values()))
    return table


def _paragraphs(records: list[Record]) -> Table:
    """One below the other, for a narrow terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for record in records:
        if table.row_count:
            table.add_row()
        for title, lines in record.items():
            table.add_row(title, Text(", ").join(lines))
    return table


def describe(definition: Definition) -> list[str]:
    """When it ticks: its expression, in words if there are any, and its zone; or its period."""
    match definition.schedule:
        case Cron(expression, zone):
            return [expression, *_in_words(expression), zone.key]
        case every:
            return [f"every {every.period}"]


def _in_words(expression: str) -> list[str]:
    """cron-descriptor wants the seconds first, and has wrong words for what only croniter knows (L5, H)."""
    fields = ALIASES.get(expression.strip().lower(), expression).split()
    if not all(PLAIN.fullmatch(field) for field in fields):
        return []
    options = Options(use_24hour_time_format=True, locale_code="en_US")  # else it asks the system, and may warn
    return [get_description(" ".join(fields[SECONDS:] + fields[:SECONDS]), options)]


# cron next


def show_ticks(console: Console, definitions: Iterable[Definition], count: int) -> None:
    """The next `count` ticks of each."""
    now = default_store().now()
    table = _table("schedule", "tick", "UTC", "interval")
    for definition in definitions:
        _add_ticks(table, definition, islice(definition.schedule.ticks_after(now), count))
        table.add_section()
    console.print(table if table.row_count else NOTHING)


def show_ticks_around_changes(console: Console, definitions: Iterable[Definition], count: int) -> None:
    """`count` ticks of each around the next change of its clock, and as many around the one after that."""
    now = default_store().now()
    table = _table("schedule", "tick", "UTC", "interval")
    for definition in definitions:
        changes = _changes(_zone(definition), now)
        for change in changes:
            _add_change(table, definition, change, count)
            table.add_section()
        if not changes:
            table.add_row(_name(definition), f"The clock of {_zone(definition)} is not changed.")
    console.print(table if table.row_count else NOTHING)


def _changes(zone: ZoneInfo, moment: datetime) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < CHANGES and (change := transition_after(zone, moment, moment + NO_CHANGE_AFTER)):
        found.append(change)
        moment = change
    return found


def _add_change(table: Table, definition: Definition, change: datetime, count: int) -> None:
    earlier = _latest(definition.schedule, change, count // 2)
    later = islice(definition.schedule.ticks_after(change - SECOND), count - count // 2)
    zone = _zone(definition)
    last, first = (change - SECOND).astimezone(zone), change.astimezone(zone)
    _add_ticks(table, definition, earlier)
    table.add_row("", f"{last + SECOND:%H:%M} {last:%Z} becomes {first:%H:%M %Z}", _utc(change), style="dim")
    _add_ticks(table, definition, later, *earlier[-1:])


def _latest(schedule: Cron | Every, until: datetime, count: int) -> list[datetime]:
    """The last `count` ticks before that."""
    window = timedelta(hours=1)
    found = [*ticks(schedule, until - window, until - SECOND)]
    while len(found) < count and window < NO_CHANGE_AFTER:
        window *= 4
        found = [*ticks(schedule, until - window, until - SECOND)]
    return found[max(0, len(found) - count) :]


def _add_ticks(
    table: Table, definition: Definition, instants: Iterable[datetime], before: datetime | None = None
) -> None:
    for instant in instants:
        interval = "" if before is None else f"{instant - before}"
        table.add_row(_name(definition), _time(instant, _zone(definition)), _utc(instant), interval)
        before = instant


# Cells


def _table(*titles: str, leading: int = 0) -> Table:
    table = Table(box=SIMPLE_HEAD, leading=leading, show_edge=False, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _name(definition: Definition) -> Text:
    return Text(definition.name if definition.enabled else f"{definition.name} (disabled)", "bold")


def _both(moment: datetime, zone: ZoneInfo) -> list[Text]:
    """In the zone and in UTC, unless that is one."""
    return [Text(time) for time in dict.fromkeys([_time(moment, zone), _time(moment, UTC)])]


def _last(tick: LastTick, zone: ZoneInfo) -> list[Text]:
    return [Text(_time(tick.nominal_at, zone)), Text(tick.state, STYLES.get(tick.state, ""))]


def _time(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%a %Y-%m-%d {_clock(moment)} %Z}"


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d {_clock(moment)}}"


def _clock(moment: datetime) -> str:
    return "%H:%M:%S" if moment.second else "%H:%M"


def _zone(definition: Definition) -> ZoneInfo:
    match definition.schedule:
        case Cron(_, zone):
            return zone
        case _:
            return ZoneInfo("UTC")
