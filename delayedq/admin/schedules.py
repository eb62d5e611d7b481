"""The cron schedules of the settings: when they ticked and will tick; they are run, disabled and enabled here."""

from __future__ import annotations

from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse

from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible, when
from delayedq.cron.beat import SETTINGS, disable, enable
from delayedq.cron.definitions import definitions
from delayedq.cron.reading import last_ticks
from delayedq.models import CronSchedule
from delayedq.operations.schedules import changes, describe, known_schedules, zone_of
from delayedq.operations.wording import relative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime, tzinfo
    from zoneinfo import ZoneInfo

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.cron.definitions import Definition
    from delayedq.cron.reading import LastTick
    from delayedq.operations.schedules import Change, Known

#: So many ticks are shown: to come, around a change of the clock, and past.
UPCOMING = 10
PAST = 20


class Row(NamedTuple):
    """A schedule in the list. `last`: when it ticked last, and what became of that."""

    name: str
    url: str
    task: str
    words: list[str]
    last: dict[str, SafeString | str] | None
    following: SafeString | str
    state: str


class TickRow(NamedTuple):
    """A tick to come, and how long after the one before; or a change of the clock."""

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


@admin.register(CronSchedule)
class ScheduleAdmin(ReadOnlyAdmin):
    def get_urls(self) -> list[URLPattern]:
        views: dict[str, Callable[..., HttpResponse]] = {
            "changelist": self.changelist_view,
            "schedule": self.schedule_view,
            "run": self.run_view,
            "disable": self.disable_view,
            "enable": self.enable_view,
        }
        return [
            path(
                "" if name == "changelist" else f"{name}/",
                self.admin_site.admin_view(view),
                name=f"delayedq_cronschedule_{name}",
            )
            for name, view in views.items()
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        now = self.store.now()
        rows = [_row(known, now) for known in self._known(request, now)]
        return self.page(request, "schedules.html", "Cron schedules", {"rows": rows, **(extra_context or {})})

    def _known(self, request: HttpRequest, now: datetime) -> list[Known]:
        try:
            defined = definitions()
        except ImproperlyConfigured as error:
            messages.error(request, str(error))
            defined = {}
        return known_schedules(self.store, defined, now)

    def _named(self, request: HttpRequest) -> Known:
        """The schedule that the address names. Raises Http404."""
        name = request.GET.get("name", "")
        for known in self._known(request, self.store.now()):
            if known.name == name:
                return known
        raise Http404(f"There is no schedule {visible(name)}.")

    def _defined(self, request: HttpRequest) -> Definition:
        """Its definition. Raises Http404."""
        definition = self._named(request).definition
        if definition is None:
            raise Http404("The settings do not have this schedule any more.")
        return definition

    # One of them

    def schedule_view(self, request: HttpRequest) -> HttpResponse:
        known, now = self._named(request), self.store.now()
        context = {
            "row": _row(known, now),
            "disabled": known.disabled_at and relative(known.disabled_at, now),
            "facts": [*_facts(known.definition)],
            "actions": [*self._actions(request, known)],
            "past": [_past_row(tick, _zone(known)) for tick in last_ticks(self.store, known.name, now, PAST)],
            "tables": [*_tables(known, now)],
        }
        return self.page(request, "schedule.html", visible(known.name), context)

    def _actions(self, request: HttpRequest, known: Known) -> Iterator[tuple[str, str]]:
        if known.definition is None:
            return
        if may(request, "run_schedule"):
            yield "Run now", _url("run", known.name)
        if may(request, "disable_schedule"):
            does = "disable" if known.disabled_at is None else "enable"
            yield does.capitalize(), _url(does, known.name)

    # What can be done to it

    def run_view(self, request: HttpRequest) -> HttpResponse:
        demand(request, "run_schedule")
        definition = self._defined(request)
        if request.method != "POST":
            return self._confirm(request, definition, "Run", "Its task will be offered once, due now.")
        scheduled = definition.run()
        self._log(request, definition, f"Run by hand, as message {scheduled.id}.")
        messages.success(request, f"Schedule {visible(definition.name)} is due now, as message {scheduled.id}.")
        return self._back(definition)

    def disable_view(self, request: HttpRequest) -> HttpResponse:
        demand(request, "disable_schedule")
        definition = self._defined(request)
        if request.method != "POST":
            said = "Its future ticks will be taken back, and no more will be placed until it is enabled again."
            return self._confirm(request, definition, "Disable", said)
        disable(self.store, definition.name, self.store.now())
        self._log(request, definition, "Disabled.")
        messages.success(request, f"Schedule {visible(definition.name)} is disabled.")
        return self._back(definition)

    def enable_view(self, request: HttpRequest) -> HttpResponse:
        demand(request, "disable_schedule")
        definition = self._defined(request)
        if request.method != "POST":
            return self._confirm(request, definition, "Enable", "Its ticks will be placed again, from now on.")
        enable(self.store, definition, self.store.now())
        self._log(request, definition, "Enabled.")
        messages.success(request, f"Schedule {visible(definition.name)} is enabled.")
        return self._back(definition)

    def _confirm(self, request: HttpRequest, definition: Definition, verb: str, said: str) -> HttpResponse:
        context = {"verb": verb, "said": said, "back": _url("schedule", definition.name)}
        return self.page(request, "confirm_state.html", f"{verb} {visible(definition.name)}?", context)

    def _log(self, request: HttpRequest, definition: Definition, said: str) -> None:
        rows = CronSchedule.objects.using(self.store.alias)
        row, _ = rows.get_or_create(owner=SETTINGS, name=definition.name, defaults={"covered_until": self.store.now()})
        self.log_change(request, row, said)

    def _back(self, definition: Definition) -> HttpResponse:
        return HttpResponseRedirect(_url("schedule", definition.name))


def _url(view: str, name: str) -> str:
    return f"{reverse(f'admin:delayedq_cronschedule_{view}')}?{urlencode({'name': name})}"


def _row(known: Known, now: datetime) -> Row:
    definition = known.definition
    return Row(
        name=visible(known.name),
        url=_url("schedule", known.name),
        task=definition.offer.kind if definition else "",
        words=describe(definition) if definition else [],
        last={"at": when(known.last.nominal_at, now), "state": known.last.state} if known.last else None,
        following=when(known.following, now),
        state=known.state,
    )


def _facts(definition: Definition | None) -> Iterator[tuple[str, str]]:
    if definition is None:
        return
    offer = definition.offer
    yield "Queue", f"{visible(offer.queue)}, priority {offer.priority}"
    deadline = definition.starting_deadline
    yield "Missed ticks", definition.misfire if deadline is None else f"{definition.misfire}, up to {deadline} late"


def _zone(known: Known) -> ZoneInfo | tzinfo:
    return zone_of(known.definition.schedule) if known.definition else UTC


# Ticks


def _tables(known: Known, now: datetime) -> Iterator[tuple[str, list[TickRow]]]:
    """The next ticks, and those around the next changes of the clock."""
    if known.definition is None:
        return
    schedule, zone = known.definition.schedule, zone_of(known.definition.schedule)
    upcoming = islice(schedule.ticks_after(now), UPCOMING)
    yield (
        f"Next {UPCOMING} ticks{'' if known.state == 'active' else ', were it enabled'}",
        [*_tick_rows(upcoming, zone)],
    )
    for change in changes(schedule, now, UPCOMING):
        yield f"Around the change of the clock on {change.at.astimezone(zone):%-d %B %Y}", [*_change_rows(change, zone)]


def _tick_rows(ticks: Iterable[datetime], zone: tzinfo, before: datetime | None = None) -> Iterator[TickRow]:
    for tick in ticks:
        yield TickRow(_time(tick, zone), _time(tick, UTC), "" if before is None else str(tick - before))
        before = tick


def _change_rows(change: Change, zone: ZoneInfo) -> Iterator[TickRow]:
    yield from _tick_rows(change.earlier, zone)
    yield TickRow(change.told(zone), _time(change.at, UTC), is_change=True)
    yield from _tick_rows(change.later, zone, *change.earlier[-1:])


def _past_row(tick: LastTick, zone: tzinfo) -> PastRow:
    model = "message" if tick.is_live else "finishedmessage"
    url = reverse(f"admin:delayedq_{model}_change", args=[tick.message_id]) if tick.message_id else ""
    return PastRow(_time(tick.nominal_at, zone), _time(tick.nominal_at, UTC), tick.state, tick.message_id, url)


def _time(moment: datetime, zone: tzinfo) -> str:
    seconds = ":%S" if moment.second else ""
    return f"{moment.astimezone(zone):%a %Y-%m-%d %H:%M{seconds} %Z}"
