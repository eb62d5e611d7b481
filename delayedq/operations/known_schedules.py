"""The schedules of the settings and of the database with their state, a page at a time, in few statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.serialization import loads
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import read_stored
from delayedq.cron.reading import latest_ticks
from delayedq.exceptions import DelayedQError
from delayedq.models import CronSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick
    from delayedq.store.base import Store

#: Rows per statement where all are read.
ALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A schedule with its state. `definition` None: it is not defined any more, or can't be read (`problem`)."""

    name: str
    definition: Definition | None
    disabled_at: datetime | None
    last: LastTick | None
    following: datetime | None
    in_database: bool = False
    problem: str = ""

    @property
    def state(self) -> str:
        if self.problem:
            return "can't be read here"
        if self.definition is None:
            return "not defined"
        if not self.definition.enabled:
            return "disabled in the settings"
        if self.disabled_at is not None:
            return "disabled"
        return "active" if self.following else "ended"


class Page(NamedTuple):
    schedules: list[Known]
    total: int


def page_of_schedules(
    store: Store, definitions: Mapping[str, Definition], now: datetime, first: int = 0, count: int = ALL
) -> Page:
    """Those of the settings in their order, then the others by name: `count` of them, from number `first` (0) on.

    At most 6 statements, whatever there is.
    """
    names = list(definitions)
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS)
    others = rows.exclude(name__in=names).order_by("name")
    chosen = names[first : first + count]
    found = {row.name: row for row in rows.filter(name__in=chosen)} if chosen else {}
    wanted = [found.get(name) or CronSchedule(owner=SETTINGS, name=name) for name in chosen]
    if len(wanted) < count:
        start = max(0, first - len(names))
        wanted += others[start : start + count - len(wanted)]
    return Page(_known(store, wanted, definitions, now), len(names) + others.count())


def all_schedules(store: Store, definitions: Mapping[str, Definition], now: datetime) -> Iterator[Known]:
    """The same, one after the other."""
    first = 0
    while page := page_of_schedules(store, definitions, now, first).schedules:
        yield from page
        first += len(page)


def named_schedule(store: Store, definitions: Mapping[str, Definition], name: str, now: datetime) -> Known | None:
    """The schedule of this name; None if there is none."""
    row = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name).first()
    if row is None and name not in definitions:
        return None
    (known,) = _known(store, [row or CronSchedule(owner=SETTINGS, name=name)], definitions, now)
    return known


def _known(
    store: Store, rows: Sequence[CronSchedule], definitions: Mapping[str, Definition], now: datetime
) -> list[Known]:
    last = latest_ticks(store, [row.pk for row in rows if row.pk is not None], now)
    return [_one(row, definitions, last.get(row.pk), now) for row in rows]


def _one(row: CronSchedule, definitions: Mapping[str, Definition], last: LastTick | None, now: datetime) -> Known:
    definition, problem = definitions.get(row.name), ""
    if row.definition is not None:
        try:
            definition = read_stored(row.name, loads(row.definition))
        except DelayedQError as error:
            definition, problem = None, str(error)
    return Known(
        name=row.name,
        definition=definition,
        disabled_at=row.disabled_at,
        last=last,
        following=_following(row, definition, now),
        in_database=row.definition is not None,
        problem=problem,
    )


def _following(row: CronSchedule, definition: Definition | None, now: datetime) -> datetime | None:
    if definition is None or not definition.enabled or row.disabled_at is not None:
        return None
    most, installed = definition.max_runs, row.config_hash == definition.config_hash
    if most is not None and installed and row.runs >= most:
        return row.next_at if row.next_at is not None and row.next_at > now else None
    return definition.schedule.next_after(now)
