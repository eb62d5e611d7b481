"""When schedules tick, in words, and around DST changes: for an operator."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db import transaction
from django.utils.translation import get_language, gettext_noop
from django.utils.translation import gettext as _

from delayedq import schedules
from delayedq.core.instants import EPOCH
from delayedq.core.serialization import dumps, loads
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import read_stored
from delayedq.cron.expressions import ALIASES, SECOND, Cron, Every, Within, ticks, transition_after
from delayedq.cron.reading import latest_ticks
from delayedq.exceptions import DelayedQError
from delayedq.models import CronSchedule, Edit, EditedMessage
from delayedq.operations.edits import begin
from delayedq.operations.wording import grouped
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick
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
        said.append(_("put off by up to %s") % _period(definition.jitter))
    if definition.max_runs is not None:
        said.append(_("at most %s times") % grouped(definition.max_runs))
    return said


def _when(schedule: AnySchedule) -> list[str]:
    match schedule:
        case Within(inner, start, end):
            limits = ((_("from %s"), start), (_("until %s"), end))
            return [*_when(inner), *[words % limit for words, limit in limits if limit is not None]]
        case Every(period, anchor):
            if anchor == EPOCH:
                return [_("every %s") % _period(period)]
            return [_("every %(period)s, counted from %(anchor)s") % {"period": _period(period), "anchor": anchor}]
        case Cron(expression, zone):
            return [expression, *_in_words(expression), zone.key]


def _period(period: timedelta) -> str:
    """Such as 1:30:00, or "2 d 0:00:00"."""
    rest = period - timedelta(days=period.days)
    return f"{period.days} {_('d')} {rest}" if period.days else str(rest)


#: The languages of the pages in which cron-descriptor speaks; its own is English.
SPOKEN = {"de": "de_DE", "he": "he_IL"}


def _in_words(expression: str) -> list[str]:
    """cron-descriptor takes the seconds first, and describes croniter's extensions (L5, H) wrongly: they get none."""
    fields = ALIASES.get(expression.strip().lower(), expression).split()
    if not all(PLAIN.fullmatch(field) for field in fields):
        return []
    try:
        from cron_descriptor import Options, get_description  # type: ignore[import-untyped]  # an extra
    except ModuleNotFoundError:
        return []
    language = SPOKEN.get((get_language() or "").partition("-")[0], "en_US")
    options = Options(use_24hour_time_format=True, locale_code=language)  # else it asks the system, and may warn
    return [get_description(" ".join(fields[SECONDS:] + fields[:SECONDS]), options)]


class Change(NamedTuple):
    """A change of a zone's UTC offset, and the ticks around it."""

    at: datetime
    earlier: list[datetime]
    later: list[datetime]

    def told(self, zone: ZoneInfo) -> str:
        """Such as "02:00 EST becomes 03:00 EDT"."""
        last, first = (self.at - SECOND).astimezone(zone), self.at.astimezone(zone)
        return _("%(last)s becomes %(first)s") % {
            "last": f"{last + SECOND:%H:%M} {last:%Z}",
            "first": f"{first:%H:%M %Z}",
        }


def changes(schedule: AnySchedule, now: datetime, count: int) -> Iterator[Change]:
    """The next changes of the schedule's clock, each with `count` ticks around it."""
    zone, moment = zone_of(schedule), now
    for _number in range(CHANGES):
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


# The schedules of the settings and of the database with their state, a page at a time, in few statements.


#: Rows per statement where all are read.
ALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSchedule:
    """A schedule with its state. `definition` None: it is not defined any more, or can't be read (`problem`)."""

    name: str
    definition: Definition | None
    disabled_at: datetime | None
    #: Its past ticks, the newest first, as many as were asked for.
    past: Sequence[LastTick]
    following: datetime | None
    in_database: bool = False
    problem: str = ""

    @property
    def last(self) -> LastTick | None:
        return self.past[0] if self.past else None

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


class SchedulePage(NamedTuple):
    schedules: list[KnownSchedule]
    total: int


class ScheduleSelection(NamedTuple):
    """Which schedules: `text` is in their name, `kind` is the path of their task, `is_disabled` (by hand, or in the
    settings). What is not given selects all.
    """

    text: str = ""
    kind: str = ""
    is_disabled: bool | None = None

    def names(self, definitions: Mapping[str, Definition], disabled: set[str]) -> list[str]:
        """Those of the settings that are selected, in their order. `disabled`: by hand."""
        return [
            name
            for name, one in definitions.items()
            if self.text.casefold() in name.casefold()
            and self.kind in {"", one.offer.kind}
            and self.is_disabled in {None, not one.enabled or name in disabled}
        ]

    def rows(self, rows: QuerySet[CronSchedule]) -> QuerySet[CronSchedule]:
        """Those of the others that are selected."""
        if self.text:
            rows = rows.filter(name__icontains=self.text)
        if self.kind:
            rows = rows.filter(definition__contains=f'"task":{json.dumps(self.kind)}')
        if self.is_disabled is not None:
            rows = rows.filter(definition__isnull=False, disabled_at__isnull=not self.is_disabled)
        return rows


def page_of_schedules(
    store: Store,
    definitions: Mapping[str, Definition],
    now: datetime,
    first: int = 0,
    count: int = ALL,
    selection: ScheduleSelection = ScheduleSelection(),  # noqa: B008 - a constant
    past: int = 1,
) -> SchedulePage:
    """Those of the settings in their order, then the others by name: `count` of them, from number `first` (0) on.

    past: of how many past ticks each tells. At most 7 statements, and more for more than about 1,000 past ticks.
    """
    names = selection.names(definitions, disabled_by_hand(store) if selection.is_disabled is not None else set())
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS)
    others = selection.rows(rows.exclude(name__in=list(definitions))).order_by("name")
    chosen = names[first : first + count]
    found = {row.name: row for row in rows.filter(name__in=chosen)} if chosen else {}
    wanted = [found.get(name) or CronSchedule(owner=SETTINGS, name=name) for name in chosen]
    if len(wanted) < count:
        start = max(0, first - len(names))
        wanted += others[start : start + count - len(wanted)]
    return SchedulePage(_known(store, wanted, definitions, now, past), len(names) + others.count())


def all_schedules(store: Store, definitions: Mapping[str, Definition], now: datetime) -> Iterator[KnownSchedule]:
    """The same, one after the other."""
    first = 0
    while page := page_of_schedules(store, definitions, now, first).schedules:
        yield from page
        first += len(page)


def named_schedule(
    store: Store, definitions: Mapping[str, Definition], name: str, now: datetime
) -> KnownSchedule | None:
    """The schedule of this name; None if there is none."""
    row = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name).first()
    if row is None and name not in definitions:
        return None
    (known,) = _known(store, [row or CronSchedule(owner=SETTINGS, name=name)], definitions, now)
    return known


def _known(
    store: Store, rows: Sequence[CronSchedule], definitions: Mapping[str, Definition], now: datetime, past: int = 1
) -> list[KnownSchedule]:
    ticks = latest_ticks(store, [row.pk for row in rows if row.pk is not None], now, past)
    return [_one(row, definitions, ticks.get(row.pk, []), now) for row in rows]


def _one(
    row: CronSchedule, definitions: Mapping[str, Definition], past: Sequence[LastTick], now: datetime
) -> KnownSchedule:
    definition, problem = definitions.get(row.name), ""
    if row.definition is not None:
        try:
            definition = read_stored(row.name, loads(row.definition))
        except DelayedQError as error:
            definition, problem = None, str(error)
    return KnownSchedule(
        name=row.name,
        definition=definition,
        disabled_at=row.disabled_at,
        past=past,
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


# Changes of schedules by an operator, recorded as edits with the state before and after, for an undo.


#: As it stands in `Edit.action`.
SCHEDULE = gettext_noop("schedule")


def recorded[R](name: str, verb: str, change: Callable[[], R], made_by: str = "", why: str = "") -> R:
    """Do `change`, which is about the schedule of this name, and record it, both or neither."""
    store = default_store()
    with transaction.atomic(using=store.alias):
        before, id_ = _state(store, name, lock=True)
        result = change()
        after, new_id = _state(store, name)
        if before != after:
            edit = begin(store, SCHEDULE, f"{verb} schedule {name}", made_by, why)
            EditedMessage.objects.using(store.alias).create(
                edit=edit, message_id=id_ or new_id, generation=0, before=json.dumps(before), after=json.dumps(after)
            )
            Edit.objects.using(store.alias).filter(pk=edit.pk).update(changed=1)
    return result


def undo_schedules(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """Bring back what was before, for each schedule that still is as the edit left it; returns their ids."""
    return {record.message_id for record in records if _undo_one(store, json.loads(record.before), record)}


def _undo_one(store: Store, before: dict[str, Any], record: EditedMessage) -> bool:
    name = before["name"]
    now, _ = _state(store, name, lock=True)
    if now != json.loads(record.after):
        return False
    if not before["exists"]:
        return schedules.delete(name)
    if before["definition"] is not None and before["definition"] != now["definition"]:
        _restore(name, loads(before["definition"]), exists=now["exists"], enabled=not before["disabled"])
    if before["disabled"] != _state(store, name)[0]["disabled"]:
        (schedules.disable if before["disabled"] else schedules.enable)(name)
    return True


def _restore(name: str, given: dict[str, Any], *, exists: bool, enabled: bool) -> None:
    if not exists:
        schedules.create(name, **given, enabled=enabled)
        return
    others = dict.fromkeys(schedules.get(name).keys() - given.keys())
    schedules.update(name, **{**others, **given})


def _state(store: Store, name: str, *, lock: bool = False) -> tuple[dict[str, Any], int]:
    """What an undo compares and brings back; and the id of the schedule's row, 0 if there is none."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name)
    row = (rows.select_for_update() if lock else rows).first()
    definition = None if row is None or row.definition is None else dumps(loads(row.definition))
    disabled = row is not None and row.disabled_at is not None
    exists = row is not None and (row.definition is not None or disabled)
    return {"name": name, "exists": exists, "definition": definition, "disabled": disabled}, row.pk if row else 0
