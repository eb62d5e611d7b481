"""What the pages of a schedule show: rows, facts, ticks to come, ticks around clock changes, and past ticks."""

from __future__ import annotations

from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from delayedq.admin.base import visible
from delayedq.admin.moments import when
from delayedq.operations.schedules import changes, describe, zone_of
from delayedq.operations.wording import exact, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime, tzinfo
    from zoneinfo import ZoneInfo

    from django.utils.safestring import SafeString

    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick
    from delayedq.operations.known_schedules import Known
    from delayedq.operations.schedules import Change

#: How many ticks are shown: future ones and those around a DST change, and past ones.
UPCOMING = 10
PAST = 20


class Row(NamedTuple):
    """A schedule in the list. `last`: its last tick and the outcome."""

    name: str
    url: str
    task: str
    words: list[str]
    last: dict[str, SafeString | str] | None
    following: SafeString | str
    state: str


class TickRow(NamedTuple):
    """A future tick and the interval since the one before, or a change of the clock."""

    local: str
    utc: str
    after: str = ""
    is_change: bool = False


class PastRow(NamedTuple):
    local: str
    utc: str
    state: str
    message_id: int | None
    url: str


def url_of(view: str, name: str) -> str:
    return f"{reverse(f'admin:delayedq_cronschedule_{view}')}?{urlencode({'name': name})}"


def row_of(known: Known, now: datetime) -> Row:
    definition = known.definition
    return Row(
        name=visible(known.name),
        url=url_of("schedule", known.name),
        task=definition.offer.kind if definition else "",
        words=describe(definition) if definition else [],
        last={"at": when(known.last.nominal_at, now), "state": known.last.state} if known.last else None,
        following=when(known.following, now),
        state=known.state,
    )


def facts_of(known: Known) -> Iterator[tuple[str, str]]:
    if known.problem:
        yield _("Problem"), visible(known.problem)
    definition = known.definition
    if definition is None:
        return
    yield _("Defined in"), _("the database") if known.in_database else _("the settings")
    queue = {"queue": visible(definition.offer.queue), "priority": definition.offer.priority}
    yield _("Queue"), _("%(queue)s, priority %(priority)s") % queue
    deadline, late = definition.starting_deadline, _("%(misfire)s, up to %(span)s late")
    misfire = {"misfire": definition.misfire, "span": deadline and span(deadline)}
    yield _("Missed ticks"), definition.misfire if deadline is None else late % misfire
    yield _("Overlap"), definition.overlap


def zone_shown(definition: Definition | None) -> ZoneInfo | tzinfo:
    return zone_of(definition.schedule) if definition else UTC


def tick_tables(
    definition: Definition | None, now: datetime, *, is_active: bool = True
) -> Iterator[tuple[str, list[TickRow]]]:
    """The next ticks, and those around the next changes of the clock."""
    if definition is None:
        return
    schedule, zone = definition.schedule, zone_of(definition.schedule)
    upcoming = islice(schedule.ticks_after(now), UPCOMING)
    title = _("Next %(number)s ticks") if is_active else _("Next %(number)s ticks, were it enabled")
    yield title % {"number": UPCOMING}, [*_tick_rows(upcoming, zone)]
    for change in changes(schedule, now, UPCOMING):
        yield (
            _("Around the change of the clock on %(time)s") % {"time": _time(change.at, zone)},
            [*_change_rows(change, zone)],
        )


def _tick_rows(ticks: Iterable[datetime], zone: tzinfo, before: datetime | None = None) -> Iterator[TickRow]:
    for tick in ticks:
        yield TickRow(_time(tick, zone), _time(tick, UTC), "" if before is None else str(tick - before))
        before = tick


def _change_rows(change: Change, zone: ZoneInfo) -> Iterator[TickRow]:
    yield from _tick_rows(change.earlier, zone)
    yield TickRow(change.told(zone), _time(change.at, UTC), is_change=True)
    yield from _tick_rows(change.later, zone, *change.earlier[-1:])


def past_row(tick: LastTick, zone: tzinfo) -> PastRow:
    model = "message" if tick.is_live else "finishedmessage"
    url = reverse(f"admin:delayedq_{model}_change", args=[tick.message_id]) if tick.message_id else ""
    return PastRow(_time(tick.nominal_at, zone), _time(tick.nominal_at, UTC), tick.state, tick.message_id, url)


def _time(moment: datetime, zone: tzinfo) -> str:
    """The one format of a time, in the zone of a schedule."""
    with timezone.override(zone):
        return exact(moment)
