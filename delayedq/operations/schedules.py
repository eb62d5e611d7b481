"""When schedules tick, in words, and around DST changes: for an operator."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from delayedq.core.cron import SECOND, Cron, Every, Within, ticks, transition_after
from delayedq.core.cron_fields import ALIASES
from delayedq.core.instants import EPOCH
from delayedq.cron.beat import SETTINGS
from delayedq.models import CronSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store

AnySchedule = Cron | Every | Within

#: A zone with DST changes twice a year; one that has not changed within this time has none any more.
NO_CHANGE_AFTER = timedelta(days=550)
CHANGES = 2

#: The position of the seconds in an expression of six fields.
SECONDS = 5

#: A field of a cron expression in the syntax that cron-descriptor shares with croniter.
PLAIN = re.compile(r"((\*|\d+|[a-z]{3})(-(\d+|[a-z]{3}))?(/\d+)?(,|$))+", re.IGNORECASE)


def disabled_by_hand(store: Store) -> set[str]:
    """Their names."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, disabled_at__isnull=False)
    return set(rows.values_list("name", flat=True))


# Ticks to come


def zone_of(schedule: AnySchedule) -> ZoneInfo:
    match schedule:
        case Within(inner):
            return zone_of(inner)
        case Cron(_, zone):
            return zone
        case _:
            return ZoneInfo("UTC")


def describe(definition: Definition) -> list[str]:
    """When it ticks: expression, the same in words if possible, and zone; or its period."""
    said = _when(definition.schedule)
    if definition.jitter:
        said.append(f"put off by up to {definition.jitter}")
    if definition.max_runs is not None:
        said.append(f"at most {definition.max_runs} times")
    return said


def _when(schedule: AnySchedule) -> list[str]:
    match schedule:
        case Within(inner, start, end):
            limits = [f"{word} {limit}" for word, limit in (("from", start), ("until", end)) if limit is not None]
            return [*_when(inner), *limits]
        case Every(period, anchor):
            return [f"every {period}" if anchor == EPOCH else f"every {period}, counted from {anchor}"]
        case Cron(expression, zone):
            return [expression, *_in_words(expression), zone.key]


def _in_words(expression: str) -> list[str]:
    """cron-descriptor takes the seconds first, and describes croniter's extensions (L5, H) wrongly: they get none."""
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
    """A change of a zone's UTC offset, and the ticks around it."""

    at: datetime
    earlier: list[datetime]
    later: list[datetime]

    def told(self, zone: ZoneInfo) -> str:
        """Such as "02:00 EST becomes 03:00 EDT"."""
        last, first = (self.at - SECOND).astimezone(zone), self.at.astimezone(zone)
        return f"{last + SECOND:%H:%M} {last:%Z} becomes {first:%H:%M %Z}"


def changes(schedule: AnySchedule, now: datetime, count: int) -> Iterator[Change]:
    """The next changes of the schedule's clock, each with `count` ticks around it."""
    zone, moment = zone_of(schedule), now
    for _ in range(CHANGES):
        change = transition_after(zone, moment, moment + NO_CHANGE_AFTER)
        if change is None:
            return
        later = islice(schedule.ticks_after(change - SECOND), count - count // 2)
        yield Change(change, _latest(schedule, change, count // 2), list(later))
        moment = change


def _latest(schedule: AnySchedule, until: datetime, count: int) -> list[datetime]:
    """The last `count` ticks before that."""
    window = timedelta(hours=1)
    found = [*ticks(schedule, until - window, until - SECOND)]
    while len(found) < count and window < NO_CHANGE_AFTER:
        window *= 4
        found = [*ticks(schedule, until - window, until - SECOND)]
    return found[max(0, len(found) - count) :]
