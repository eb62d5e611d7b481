"""The schedules of the settings: what they are, when they tick, and what an operator does to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from delayedq.core.cron import SECOND, Cron, ticks, transition_after
from delayedq.core.cron_fields import ALIASES
from delayedq.cron.beat import SETTINGS
from delayedq.cron.reading import last_tick
from delayedq.models import CronSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from delayedq.core.cron import Every
    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick
    from delayedq.store.protocol import Store

#: Clocks are changed twice a year, and where they are not any more, not again.
NO_CHANGE_AFTER = timedelta(days=550)
CHANGES = 2

#: Where cron expressions have the field of the seconds, if they have one.
SECONDS = 5

#: A field of a cron expression in the syntax that all know.
PLAIN = re.compile(r"((\*|\d+|[a-z]{3})(-(\d+|[a-z]{3}))?(/\d+)?(,|$))+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A schedule, and what became of it. `definition` None: the settings do not have it any more."""

    name: str
    definition: Definition | None
    disabled_at: datetime | None
    last: LastTick | None
    following: datetime | None

    @property
    def state(self) -> str:
        if self.definition is None:
            return "not defined"
        if not self.definition.enabled:
            return "disabled in the settings"
        return "active" if self.disabled_at is None else "disabled"


def known_schedules(store: Store, definitions: Mapping[str, Definition], now: datetime) -> list[Known]:
    """Those of the settings in their order, then those that the settings had once and that have ticks."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS).order_by("name")
    disabled = {row.name: row.disabled_at for row in rows}
    names = [*definitions, *(name for name in disabled if name not in definitions)]
    return [known_schedule(store, name, definitions.get(name), disabled.get(name), now) for name in names]


def known_schedule(
    store: Store, name: str, definition: Definition | None, disabled_at: datetime | None, now: datetime
) -> Known:
    active = definition is not None and definition.enabled and disabled_at is None
    return Known(
        name=name,
        definition=definition,
        disabled_at=disabled_at,
        last=last_tick(store, name, now),
        following=definition.schedule.next_after(now) if definition and active else None,
    )


def disabled_since(store: Store, name: str) -> datetime | None:
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name)
    return rows.values_list("disabled_at", flat=True).first()


def disabled_by_hand(store: Store) -> set[str]:
    """Their names."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, disabled_at__isnull=False)
    return set(rows.values_list("name", flat=True))


# Ticks to come


def zone_of(schedule: Cron | Every) -> ZoneInfo:
    match schedule:
        case Cron(_, zone):
            return zone
        case _:
            return ZoneInfo("UTC")


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
    try:
        from cron_descriptor import Options, get_description  # type: ignore[import-untyped]  # an extra
    except ModuleNotFoundError:
        return []
    options = Options(use_24hour_time_format=True, locale_code="en_US")  # else it asks the system, and may warn
    return [get_description(" ".join(fields[SECONDS:] + fields[:SECONDS]), options)]


class Change(NamedTuple):
    """A change of a clock, and the ticks around it."""

    at: datetime
    earlier: list[datetime]
    later: list[datetime]

    def told(self, zone: ZoneInfo) -> str:
        """Such as "02:00 EST becomes 03:00 EDT"."""
        last, first = (self.at - SECOND).astimezone(zone), self.at.astimezone(zone)
        return f"{last + SECOND:%H:%M} {last:%Z} becomes {first:%H:%M %Z}"


def changes(schedule: Cron | Every, now: datetime, count: int) -> Iterator[Change]:
    """The next changes of the schedule's clock, each with `count` ticks around it."""
    zone, moment = zone_of(schedule), now
    for _ in range(CHANGES):
        change = transition_after(zone, moment, moment + NO_CHANGE_AFTER)
        if change is None:
            return
        later = islice(schedule.ticks_after(change - SECOND), count - count // 2)
        yield Change(change, _latest(schedule, change, count // 2), list(later))
        moment = change


def _latest(schedule: Cron | Every, until: datetime, count: int) -> list[datetime]:
    """The last `count` ticks before that."""
    window = timedelta(hours=1)
    found = [*ticks(schedule, until - window, until - SECOND)]
    while len(found) < count and window < NO_CHANGE_AFTER:
        window *= 4
        found = [*ticks(schedule, until - window, until - SECOND)]
    return found[max(0, len(found) - count) :]
