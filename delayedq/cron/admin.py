"""The cron schedules: run, disable and enable all; add, edit and delete those of the database."""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ImproperlyConfigured
from django.db import router, transaction
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from delayedq import schedules
from delayedq.admin.ask import Ask, AskingAdmin, Reply, who_and_why
from delayedq.admin.base import may
from delayedq.admin.filters import ANY, ListFilter
from delayedq.admin.lists import PER_PAGE, chips_of, paging, skipped_in
from delayedq.admin.marks import STATES, state_word
from delayedq.admin.moments import when
from delayedq.admin.names import NamePages, Suggested
from delayedq.core.bounds import NAME_LENGTH
from delayedq.cron.admin_form import ScheduleForm, field_of, is_editable
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import definitions
from delayedq.cron.operator import (
    SchedulePage,
    ScheduleSelection,
    changes,
    describe,
    named_schedule,
    page_of_schedules,
    recorded,
    zone_of,
)
from delayedq.cron.reading import last_ticks
from delayedq.exceptions import DelayedQError
from delayedq.models import CronSchedule
from delayedq.operations.wording import both, exact, grouped, span, visible
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime, tzinfo
    from zoneinfo import ZoneInfo

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.admin.names import Named
    from delayedq.cron.definitions import Definition
    from delayedq.cron.operator import Change, KnownSchedule
    from delayedq.cron.reading import LastTick

# What the pages of a schedule show: rows, facts, ticks to come, ticks around clock changes, and past ticks.


#: How many ticks are shown: future ones and those around a DST change, and past ones.
UPCOMING = 10

PAST = 20


class ScheduleRow(NamedTuple):
    """A schedule in the list. `last`: its last tick and the outcome."""

    name: str
    url: str
    task: str
    words: list[str]
    last: dict[str, SafeString | str] | None
    following: SafeString | str
    state: str
    bars: TickBars | None = None


#: From one bar of a tick to the next, in units of the picture.
STEP = 6

#: How high a bar is, by the state of its tick; 5 for others.
HEIGHT = {"succeeded": 16, "failed": 16, "running": 11, "due": 8, "retrying": 11}


class TickBars(NamedTuple):
    """Past ticks as bars, the latest last: place, top, height and state of each; and the same in words."""

    bars: list[tuple[int, int, int, str]]
    words: str


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


def row_of(known: KnownSchedule, now: datetime) -> ScheduleRow:
    definition = known.definition
    return ScheduleRow(
        name=visible(known.name),
        url=url_of("schedule", known.name),
        task=definition.offer.kind if definition else "",
        words=describe(definition) if definition else [],
        last={"at": when(known.last.nominal_at, now), "state": known.last.state} if known.last else None,
        following=when(known.following, now),
        state=known.state,
        bars=bars_of(known.past) if known.past else None,
    )


def bars_of(past: Sequence[LastTick]) -> TickBars:
    """The newest come first in `past`."""
    bars = []
    for number, tick in enumerate(reversed(past)):
        height = HEIGHT.get(tick.state, 5)
        bars.append((number * STEP, max(HEIGHT.values()) - height, height, tick.state))
    counted = Counter(tick.state for tick in past)
    told = ", ".join(f"{state_word(state)} {grouped(number)}" for state, number in counted.most_common())
    said = ngettext("The last tick: %(told)s", "The last %(number)s ticks: %(told)s", len(past))
    return TickBars(bars, said % {"number": len(past), "told": told})


def facts_of(known: KnownSchedule) -> Iterator[tuple[str, str]]:
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


# Schedules


class ScheduleFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Name has"), required=False, max_length=NAME_LENGTH)
    kind = forms.CharField(label=gettext_lazy("Task"), required=False, max_length=NAME_LENGTH, widget=Suggested("kind"))
    state = forms.ChoiceField(
        label=gettext_lazy("State"),
        required=False,
        choices=[ANY, ("enabled", gettext_lazy("enabled")), ("disabled", STATES["disabled"])],
    )

    def selection(self) -> ScheduleSelection | None:
        """None: what was given is not valid."""
        if not self.is_valid():
            return None
        given = self.cleaned_data
        return ScheduleSelection(
            given["q"], given["kind"], {"": None}.get(given["state"], given["state"] == "disabled")
        )


@admin.register(CronSchedule)
class ScheduleAdmin(NamePages, AskingAdmin):
    named: ClassVar[Named] = {"kind": lambda _store: registered}

    def get_urls(self) -> list[URLPattern]:
        views: dict[str, Callable[..., HttpResponse]] = {
            "changelist": self.changelist_view,
            "names": self.names_view,
            "schedule": self.schedule_view,
            "add": self.add_schedule_view,
            "edit": self.edit_view,
            "delete": self.remove_view,
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
        now, first, asked = self.store.now(), skipped_in(request), ScheduleFilter(request.GET)
        asked.fields["kind"].widget = Suggested("kind", request.GET.dict())
        selection, found = asked.selection(), SchedulePage([], 0)
        if selection is not None:
            found = page_of_schedules(self.store, self._settings(request), now, first, PER_PAGE, selection, PAST)
        said = ngettext("%(number)s schedule", "%(number)s schedules", found.total)
        context = {
            "filter": asked,
            "chips": chips_of(asked, request.GET, ""),
            "rows": [row_of(known, now) for known in found.schedules],
            **paging(
                request,
                first + PER_PAGE if first + PER_PAGE < found.total else None,
                said % {"number": grouped(found.total)},
            ),
            "add_url": reverse("admin:delayedq_cronschedule_add") if may(request, "edit_schedule") else "",
        }
        return self.page(request, "schedules.html", _("Cron schedules"), {**context, **(extra_context or {})})

    def _settings(self, request: HttpRequest) -> dict[str, Definition]:
        try:
            return definitions()
        except ImproperlyConfigured as error:
            messages.error(request, visible(str(error)))
            return {}

    def _named(self, request: HttpRequest) -> KnownSchedule:
        """The schedule that the address names. Raises Http404."""
        name = request.GET.get("name", "")
        known = None
        if "\0" not in name:  # PostgreSQL refuses to search for it
            known = named_schedule(self.store, self._settings(request), name, self.store.now())
        if known is None:
            raise Http404(_("There is no schedule %(name)s.") % {"name": visible(name)})
        return known

    def _defined(self, request: HttpRequest) -> KnownSchedule:
        """The same, if it has a definition. Raises Http404."""
        known = self._named(request)
        if known.definition is None:
            raise Http404(_("This schedule has no definition any more."))
        return known

    # One of them

    def schedule_view(self, request: HttpRequest) -> HttpResponse:
        known, now = self._named(request), self.store.now()
        zone, past = zone_shown(known.definition), last_ticks(self.store, known.name, now, PAST)
        context = {
            "row": row_of(known, now),
            "bars": bars_of(past) if past else None,
            "disabled": known.disabled_at and both(known.disabled_at, now),
            "facts": [*facts_of(known)],
            "actions": [*self._actions(request, known)],
            "past": [past_row(tick, zone) for tick in past],
            "tables": [*tick_tables(known.definition, now, is_active=known.state == "active")],
        }
        return self.page(request, "schedule.html", visible(known.name), context)

    def _actions(self, request: HttpRequest, known: KnownSchedule) -> Iterator[tuple[str, str]]:
        if known.definition is not None and may(request, "run_schedule"):
            yield _("Run now"), url_of("run", known.name)
        if known.definition is not None and may(request, "disable_schedule"):
            does = "disable" if known.disabled_at is None else "enable"
            yield _("Disable") if does == "disable" else _("Enable"), url_of(does, known.name)
        if known.in_database and may(request, "edit_schedule"):
            if may(request, "view_payload"):
                yield _("Edit"), url_of("edit", known.name)
            yield pgettext("schedule", "Delete"), url_of("delete", known.name)

    # To add and to edit

    def add_schedule_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "edit_schedule")
        form = ScheduleForm(request.POST or None)
        if request.method == "POST" and form.is_valid() and "save" in request.POST:
            name = form.cleaned_data["name"]
            saved = self._save(request, form, "Add", lambda: schedules.create(name, **form.given))
            if saved:
                return saved
        return self._form(request, form, _("Add a schedule"), reverse("admin:delayedq_cronschedule_changelist"))

    def edit_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "edit_schedule", "view_payload")
        known = self._named(request)
        if not known.in_database:
            raise Http404(_("This schedule is not in the database."))
        given = schedules.get(known.name)
        if not is_editable(given):
            messages.error(request, _("Its arguments have no plain JSON form: it can only be changed by code."))
            return self._back(known.name)
        form = ScheduleForm(request.POST or None, name=known.name, initial={"name": known.name, **given})
        if request.method == "POST" and form.is_valid() and "save" in request.POST:
            changes = {**dict.fromkeys(given.keys() - form.given.keys()), **form.given}
            saved = self._save(request, form, "Change", lambda: schedules.update(known.name, **changes))
            if saved:
                return saved
        return self._form(
            request, form, _("Edit %(name)s") % {"name": visible(known.name)}, url_of("schedule", known.name)
        )

    def _save(
        self, request: HttpRequest, form: ScheduleForm, verb: str, change: Callable[[], object]
    ) -> HttpResponse | None:
        name = form.cleaned_data["name"]
        try:
            recorded(name, verb, change, *who_and_why(request))
        except DelayedQError as error:
            form.add_error(field_of(str(error), form.fields), visible(str(error)))
            return None
        self._log(request, name, _("Added.") if verb == "Add" else _("Changed."))
        messages.success(
            request,
            (_("Schedule %(name)s is added.") if verb == "Add" else _("Schedule %(name)s is changed."))
            % {"name": visible(name)},
        )
        return self._back(name)

    def _form(self, request: HttpRequest, form: ScheduleForm, title: str, back: str) -> HttpResponse:
        """With a preview of the ticks, if what was entered is a schedule."""
        definition = form.definition if form.is_bound else None
        context = {"form": form, "back": back, "tables": [*tick_tables(definition, self.store.now())]}
        return self.page(request, "schedule_form.html", title, context)

    # What else can be done to it

    def remove_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "edit_schedule")
        name = self._named(request).name
        given = {"name": visible(name)}
        said = _("Its ticks that have not begun will be taken back. The edit in the log can be undone.")

        def do() -> Reply:
            with transaction.atomic(using=self.store.alias), transaction.atomic(using=router.db_for_write(LogEntry)):
                self._log(request, name, _("Deleted."))
                recorded(name, "Delete", lambda: schedules.delete(name), *who_and_why(request))
            back = reverse("admin:delayedq_cronschedule_changelist")
            return Reply(_("Schedule %(name)s is deleted.") % given, logged=None, back=back, is_recorded=True)

        ask = self._asked(name, _("Delete the schedule"), _("Delete %(name)s?") % given, said, _("Keep it"))
        return self.ask(request, ask._replace(is_destructive=True), do)

    def run_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "run_schedule")
        name = self._defined(request).name
        given = {"name": visible(name)}
        title, said = _("Run %(name)s now?") % given, _("Its task will be offered once, due now.")

        def do() -> Reply:
            sent = {**given, "id": schedules.run_now(name).id}
            told = _("Schedule %(name)s is due now, as message %(id)s.") % sent
            logged = _("Run by hand, as message %(id)s.") % sent
            return Reply(told, logged=logged, of=self._row(name), recorded=f"Run schedule {name} now")

        return self.ask(request, self._asked(name, _("Run it now"), title, said, _("Don't run it")), do)

    def disable_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "disable_schedule")
        name = self._defined(request).name
        given = {"name": visible(name)}
        title = _("Disable %(name)s?") % given
        said = _("Its future ticks will be taken back, and no more will be placed until it is enabled again.")

        def do() -> Reply:
            recorded(name, "Disable", lambda: schedules.disable(name), *who_and_why(request))
            return Reply(
                _("Schedule %(name)s is disabled.") % given, logged=_("Disabled."), of=self._row(name), is_recorded=True
            )

        return self.ask(request, self._asked(name, _("Disable the schedule"), title, said, _("Leave it enabled")), do)

    def enable_view(self, request: HttpRequest) -> HttpResponse:
        self.demand(request, "disable_schedule")
        name = self._defined(request).name
        given = {"name": visible(name)}
        title, said = _("Enable %(name)s?") % given, _("Its ticks will be placed again, from now on.")

        def do() -> Reply:
            recorded(name, "Enable", lambda: schedules.enable(name), *who_and_why(request))
            return Reply(
                _("Schedule %(name)s is enabled.") % given, logged=_("Enabled."), of=self._row(name), is_recorded=True
            )

        return self.ask(request, self._asked(name, _("Enable the schedule"), title, said, _("Leave it disabled")), do)

    def _asked(self, name: str, verb: str, title: str, said: str, keep: str) -> Ask:
        return Ask(verb, title, said, url_of("schedule", name), keep)

    def _row(self, name: str) -> CronSchedule:
        """What the log is about; of a schedule of the settings that never ticked it is made now."""
        rows = CronSchedule.objects.using(self.store.alias)
        return rows.get_or_create(owner=SETTINGS, name=name, defaults={"covered_until": self.store.now()})[0]

    def _log(self, request: HttpRequest, name: str, said: str) -> None:
        self.log_change(request, self._row(name), said)

    def _back(self, name: str) -> HttpResponse:
        return HttpResponseRedirect(url_of("schedule", name))
