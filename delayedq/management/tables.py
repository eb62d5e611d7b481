"""Tables of schedules and their ticks, for a terminal or, with lines of any length, for a file."""

from __future__ import annotations

from datetime import UTC
from itertools import islice
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from delayedq.cron.operator import changes, describe, disabled_by_hand, zone_of
from delayedq.operations.wording import grouped
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, tzinfo
    from zoneinfo import ZoneInfo

    from delayedq.cron.definitions import Definition
    from delayedq.cron.operator import Change, KnownSchedule
    from delayedq.cron.reading import LastTick
    from delayedq.operations.imports.schedules import ImportedSchedule
    from delayedq.operations.imports.waiting import Moved

    #: The cells of a schedule: lines by column title.
    Record = dict[str, list[Text]]

UNLIMITED = 10_000
NOTHING = gettext_lazy("There are no schedules, neither in DELAYEDQ['CRON'] nor in the database.")

STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow", "retrying": "yellow"}


def console_on(stream: Any, *, no_color: bool = False, force_color: bool = False) -> Console:
    """A console on a stream: as wide as the terminal, or UNLIMITED if the stream is not one."""
    return Console(
        file=stream,
        width=get_terminal_size().columns if stream.isatty() else UNLIMITED,
        color_system=None if no_color else "auto",
        force_terminal=force_color or None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def word(state: str) -> str:
    """A state as the admin calls it."""
    word = pgettext("state", state)
    return _(state) if word == state else word


# cron list


def show_schedules(console: Console, schedules: Iterable[KnownSchedule]) -> None:
    """Print each schedule's task, times, last tick with its outcome, and next tick, in the widest layout that fits."""
    records = [_record(known) for known in schedules]
    if not records:
        console.print(str(NOTHING))
        return
    layouts = [_rows(records, ", "), _rows(records, "\n"), _paragraphs(records)]
    anywhere = console.options.update(max_width=UNLIMITED)
    fitting = (table for table in layouts if console.measure(table, options=anywhere).maximum <= console.width)
    console.print(next(fitting, layouts[-1]))


def _record(known: KnownSchedule) -> Record:
    definition = known.definition
    zone = _zone(definition) if definition else UTC
    never = {"disabled in the settings": word("disabled"), "ended": _("never")}
    following = never.get(known.state, word(known.state))
    return {
        _("schedule"): [Text(known.name, "bold")],
        _("task"): [Text(definition.offer.kind)] if definition else [],
        _("when"): [Text(line) for line in describe(definition)] if definition else [],
        _("last tick"): _last(known.last, zone) if known.last else [Text(_("none yet"))],
        _("next tick"): _both(known.following, zone) if known.following else [Text(following, "yellow")],
    }


def _rows(records: list[Record], separator: str) -> Table:
    """One row for each schedule."""
    table = _table(*records[0], leading=separator.count("\n"))
    for record in records:
        table.add_row(*(Text(separator).join(lines) for lines in record.values()))
    return table


def _paragraphs(records: list[Record]) -> Table:
    """A paragraph per schedule, for a narrow terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for record in records:
        if table.row_count:
            table.add_row()
        for title, lines in record.items():
            table.add_row(title, Text(", ").join(lines))
    return table


# cron next


def show_ticks(console: Console, definitions: Iterable[Definition], count: int) -> None:
    """Print the next `count` ticks of each schedule."""
    store = default_store()
    now, disabled = store.now(), disabled_by_hand(store)
    table = _table(_("schedule"), _("tick"), "UTC", _("interval"))
    for definition in definitions:
        ticks = islice(definition.schedule.ticks_after(now), count)
        _add_ticks(table, _name(definition, disabled), _zone(definition), ticks)
        table.add_section()
    console.print(table if table.row_count else str(NOTHING))


def show_ticks_around_changes(console: Console, definitions: Iterable[Definition], count: int) -> None:
    """Print `count` ticks before and after each of the next two clock changes (DST) of each schedule's zone."""
    store = default_store()
    now, disabled = store.now(), disabled_by_hand(store)
    table = _table(_("schedule"), _("tick"), "UTC", _("interval"))
    for definition in definitions:
        name, found = _name(definition, disabled), [*changes(definition.schedule, now, count)]
        for change in found:
            _add_change(table, name, _zone(definition), change)
            table.add_section()
        if not found:
            table.add_row(name, _("The clock of %(zone)s does not change.") % {"zone": _zone(definition)})
    console.print(table if table.row_count else str(NOTHING))


def _add_change(table: Table, name: Text, zone: ZoneInfo, change: Change) -> None:
    _add_ticks(table, name, zone, change.earlier)
    table.add_row("", change.told(zone), _utc(change.at), style="dim")
    _add_ticks(table, name, zone, change.later, *change.earlier[-1:])


def _add_ticks(
    table: Table, name: Text, zone: ZoneInfo, instants: Iterable[datetime], before: datetime | None = None
) -> None:
    for instant in instants:
        interval = "" if before is None else f"{instant - before}"
        table.add_row(name, _time(instant, zone), _utc(instant), interval)
        before = instant


# Cells


def _table(*titles: str, leading: int = 0) -> Table:
    table = Table(box=SIMPLE_HEAD, leading=leading, show_edge=False, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _name(definition: Definition, disabled: set[str]) -> Text:
    """The name, marked if the schedule is disabled in the settings or by an operator."""
    active = definition.enabled and definition.name not in disabled
    return Text(definition.name if active else f"{definition.name} ({word('disabled')})", "bold")


def _both(moment: datetime, zone: tzinfo) -> list[Text]:
    """The time in the zone and in UTC; once if they are the same."""
    return [Text(time) for time in dict.fromkeys([_time(moment, zone), _time(moment, UTC)])]


def _last(tick: LastTick, zone: tzinfo) -> list[Text]:
    return [Text(_time(tick.nominal_at, zone)), Text(word(tick.state), STYLES.get(tick.state, ""))]


def _time(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%a %Y-%m-%d {_clock(moment)} %Z}"


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d {_clock(moment)}}"


def _clock(moment: datetime) -> str:
    return "%H:%M:%S" if moment.second else "%H:%M"


def _zone(definition: Definition) -> ZoneInfo:
    return zone_of(definition.schedule)


# import-from


def show_imported(console: Console, taken: Iterable[ImportedSchedule], *, dry_run: bool = False) -> None:
    """A row for each schedule of another framework: what became of it, or would."""
    table = _table(_("schedule"), _("task"), _("outcome"), _("when, or why not"), _("first tick"), _("notes"))
    for one in taken:
        outcome = _became(one.outcome, dry_run=dry_run)
        style = "red" if one.outcome == "refused" else "green"
        first = _time(one.first, UTC) if one.first else ""
        table.add_row(one.name, one.task, Text(outcome, style), one.said, first, "; ".join(one.notes))
    console.print(table if table.row_count else _("There are no schedules."))


def show_moved(console: Console, moved: Iterable[Moved], *, dry_run: bool = False) -> None:
    """A row for each task and each reason: how many of its waiting messages were moved or refused, or would be."""
    table = _table(_("task"), _("outcome"), _("messages"), _("why not"))
    for one in moved:
        outcome = _became(one.outcome, dry_run=dry_run)
        table.add_row(one.task, Text(outcome, "red" if one.said else "green"), grouped(one.messages), one.said)
    console.print(table if table.row_count else _("No messages wait there."))


def _became(outcome: str, *, dry_run: bool) -> str:
    """What became of it, or would."""
    words = {
        "imported": (_("imported"), _("would be imported")),
        "moved": (_("moved"), _("would be moved")),
        "refused": (_("refused"), _("would be refused")),
    }
    return words[outcome][dry_run]


# list


def of_messages(titles: Iterable[str], cells: Iterable[list[str]]) -> Table:
    """A row for each."""
    table = _table(*titles)
    for row in cells:
        table.add_row(*map(Text, row))
    return table
