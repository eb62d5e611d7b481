"""The dashboard: figures of the last hour, day or week, and a forecast of the next day or week."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.http import Http404
from django.urls import path, reverse
from django.utils import timezone
from django.utils.dateformat import format as formatted
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin import busy_threads
from delayedq.admin.activity import activity_of
from delayedq.admin.base import cut, may
from delayedq.admin.charts import count
from delayedq.admin.figures import (
    AHEADS,
    REFRESHED,
    SPANS,
    charts_of,
    choices,
    chosen_in,
    due_now,
    rate_of,
    totals_of,
)
from delayedq.admin.finished import query_of
from delayedq.admin.heat import Cell, level
from delayedq.admin.lists import page_of, paging
from delayedq.admin.marks import url_of_task
from delayedq.admin.moments import when
from delayedq.admin.task_page import TaskPages
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.core.errors import class_of
from delayedq.limits.admin import name_of
from delayedq.limits.operator import terms_of
from delayedq.models import Dashboard
from delayedq.operations.busy_threads import BusySpan
from delayedq.operations.figures import (
    MINUTE,
    MOST_TICKS,
    THOROUGH,
    USUAL,
    Ahead,
    Minute,
    Span,
    durations,
    figures,
    forecast,
    stampedes_in,
)
from delayedq.operations.rules import Rule, Verb
from delayedq.operations.verdict import verdict
from delayedq.operations.wording import both, exact, grouped, seconds, visible
from delayedq.store import default_store
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.limits.operator import HeldBack
    from delayedq.operations.figures import DurationFigures
    from delayedq.operations.rules import Finding, NextAction
    from delayedq.store.base import Store
    from delayedq.store.figures import Durations

# The durations on the dashboard: how long messages of each task, and in each queue, waited and ran.


#: Seconds of a minute.
MINUTE_IN_SECONDS = 60


class DurationRow(NamedTuple):
    """`figures`: with their names, as texts."""

    name: str
    url: str
    figures: list[tuple[str, str]]


class DurationTable(NamedTuple):
    """A page of the tasks, or of the queues. `pages`: the context of `_pages.html`."""

    title: str
    header: str
    rows: list[DurationRow]
    pages: dict[str, Any]


#: What the tables may be ordered by, the largest first: the label of each, and its value.
SORTS: dict[str, tuple[Any, Callable[[Durations], float | None]]] = {
    "run": (gettext_lazy("Run, p95"), lambda one: one.run_p95),
    "longest": (gettext_lazy("Longest run"), lambda one: one.slowest),
    "wait": (gettext_lazy("Wait, p95"), lambda one: one.wait_p95),
    "ended": (gettext_lazy("Ended"), lambda one: one.ended),
}


def tables(request: HttpRequest, found: DurationFigures, sort: str) -> list[DurationTable]:
    """The tasks and the queues, each a page of them, in one of the orders of SORTS."""
    given = ((_("Tasks"), _("Task"), "kind", found.tasks), (_("Queues"), _("Queue"), "queue", found.queues))
    return [_duration_table(request, found.span, sort, *one) for one in given]


def _duration_table(
    request: HttpRequest, span: timedelta, sort: str, title: str, header: str, name: str, rows: Sequence[Durations]
) -> DurationTable:
    _label, value = SORTS[sort]
    place = f"after_{name}"
    shown, following = page_of(request, sorted(rows, key=lambda one: (-(value(one) or 0.0), one.name)), place)
    return DurationTable(
        title,
        header,
        [_duration_row(name, one, span) for one in shown],
        paging(request, following, grouped(len(rows)), place=place),
    )


def _duration_row(name: str, one: Durations, span: timedelta) -> DurationRow:
    dashboard = reverse("admin:delayedq_dashboard_changelist")
    is_task = name == "kind" and BARE not in one.name
    return DurationRow(
        visible(one.name),
        url_of_task(one.name) if is_task else f"{dashboard}?{urlencode({'span': 'hour', name: one.name})}",
        [
            (_("Ended"), count(one.ended)),
            (_("Rate"), rate_of(one.ended, span.total_seconds() / MINUTE_IN_SECONDS)),
            (_("Failed"), count(one.failed)),
            (_("Wait, p50"), seconds(one.wait_p50)),
            (_("Wait, p95"), seconds(one.wait_p95)),
            (_("Run, p50"), seconds(one.run_p50)),
            (_("Run, p95"), seconds(one.run_p95)),
            (_("Longest run"), seconds(one.slowest)),
        ],
    )


# The forecast as a heat map: one row per hour with a cell per minute, or one row per day with a cell per hour.


HOURS = range(24)

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


class HeatRow(NamedTuple):
    label: str
    cells: Sequence[Cell]


class Hour(NamedTuple):
    """A row of the table that shows the same numbers as text."""

    start: datetime
    due: int
    busiest: Minute

    @property
    def at(self) -> str:
        return exact(self.start)

    @property
    def busiest_at(self) -> str:
        return exact(self.busiest.start)

    @property
    def query(self) -> str:
        return query_between(self.start, HOUR)


class HeatMap(NamedTuple):
    columns: list[str]
    rows: list[HeatRow]


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
        HeatRow(
            f"{timezone.localtime(part[0].start):%H:%M}",
            [
                Cell(level(m.due, most), _of_minute(m), m.start in starts, query_between(m.start, MINUTE))
                if m.due
                else Cell()
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
        cells = days.setdefault(formatted(local, "D d"), [Cell()] * len(HOURS))
        if hour.due:
            hot = Cell(level(hour.busiest.due, most), _of_hour(hour), hour.busiest.start in starts, hour.query)
            cells[local.hour] = max(cells[local.hour], hot)
    columns = [f"{hour:02}" if hour % 3 == 0 else "" for hour in HOURS]
    return HeatMap(columns, [HeatRow(day, cells) for day, cells in days.items()])


def query_between(start: datetime, length: timedelta) -> str:
    """The query of the message list that shows what falls due then."""
    return urlencode({"since": start.isoformat(), "until": (start + length - SECOND).isoformat()})


def _of_minute(minute: Minute) -> str:
    return _("%(time)s: %(count)s due") % {"time": exact(minute.start), "count": grouped(minute.due)}


def _of_hour(hour: Hour) -> str:
    words = _("%(time)s: %(count)s due, at most %(most)s in a minute")
    return words % {"time": hour.at, "count": grouped(hour.due), "most": grouped(hour.busiest.due)}


# The verdict on the pages: findings as rows, and what can be done about each as a link.


#: At most this many findings are shown.
SHOWN = 10

#: At most this many characters of a text are shown.
LENGTH = 400

#: The rules whose evidence begins with the text of an error.
_OF_ERRORS = {Rule.SPIKE, Rule.UNKNOWN_TASK}


class NextStep(NamedTuple):
    """What can be done: a link to a page that shows something, or asks for confirmation."""

    label: str
    url: str
    command: str


class FindingRow(NamedTuple):
    rule: str
    sentence: str
    since: SafeString | str
    evidence: list[SafeString | str]
    step: NextStep | None


class VerdictPanel(NamedTuple):
    """`worst` None: nothing is wrong. `more`: how many findings are not shown."""

    worst: FindingRow | None
    others: list[FindingRow]
    more: int


def verdict_of(request: HttpRequest, store: Store, now: datetime) -> VerdictPanel:
    """What the first screen says."""
    found = verdict(store, now)
    rows = [_finding_row(request, finding, now) for finding in found[:SHOWN]]
    return VerdictPanel(rows[0] if rows else None, rows[1:], len(found) - len(rows))


def _finding_row(request: HttpRequest, finding: Finding, now: datetime) -> FindingRow:
    return FindingRow(
        finding.rule.name.lower(),
        cut(finding.sentence, LENGTH),
        when(finding.since, now) if finding.since else "",
        [_linked(request, finding, cut(text, LENGTH)) for text in _evidence(request, finding)],
        None if finding.action is None else _step(request, finding.action),
    )


def _evidence(request: HttpRequest, finding: Finding) -> list[str]:
    """Of an error, only the class, if the user may not see what errors say."""
    if finding.rule not in _OF_ERRORS or may(request, "view_payload"):
        return [*finding.evidence]
    error, *rest = finding.evidence
    return [class_of(error), *rest]


def _linked(request: HttpRequest, finding: Finding, text: str) -> SafeString | str:
    """The text; the #id of the message in it is a link to it, if the user may view it."""
    model = "finishedmessage" if finding.rule in _OF_ERRORS else "message"
    found = finding.message_id and re.search(rf"#{finding.message_id}\b", text)
    if not found or not may(request, f"view_{model}"):
        return text
    url = reverse(f"admin:delayedq_{model}_change", args=[finding.message_id])
    return format_html('{}<a href="{}">{}</a>{}', text[: found.start()], url, found[0], text[found.end() :])


def _step(request: HttpRequest, action: NextAction) -> NextStep | None:
    """None if the user may not do it."""
    permission, url_of = _STEPS[action.verb]
    if not may(request, permission):
        return None
    return NextStep(cut(action.label, LENGTH), url_of(action), cut(action.command, LENGTH))


def _to(name: str) -> Callable[[NextAction], str]:
    """A page of the admin, to which what the action is about is passed."""

    def url_of(action: NextAction) -> str:
        about = urlencode(action.about)
        return reverse(f"admin:delayedq_{name}") + (f"?{about}" if about else "")

    return url_of


def _schedule(action: NextAction) -> str:
    return f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': action.about['schedule']})}"


def _errors(action: NextAction) -> str:
    query = query_of(int(action.about["fingerprint"]))
    return f"{reverse('admin:delayedq_finishedmessage_changelist')}?{query}"


_STEPS: dict[Verb, tuple[str, Callable[[NextAction], str]]] = {
    Verb.RESUME: ("pause_queue", _to("pausedqueue_resume")),
    Verb.RESUME_TASK: ("pause_queue", _to("pausedqueue_resume_task")),
    Verb.MESSAGES: ("view_message", _to("message_changelist")),
    Verb.ERRORS: ("view_finishedmessage", _errors),
    Verb.SCHEDULE: ("view_cronschedule", _schedule),
    Verb.WORKERS: ("view_pausedqueue", _to("pausedqueue_changelist")),
}


# Dashboard


def now_of(request: HttpRequest) -> dict[str, Any]:
    """What is wrong, and what goes on: for the first screen, and for the index of the app."""
    store = default_store()
    now = store.now()
    return {"verdict": verdict_of(request, store, now), "activity": activity_of(request, store, now)}


@admin.register(Dashboard)
class DashboardAdmin(TaskPages):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("forecast/", view(self.forecast_view), name="delayedq_dashboard_forecast"),
            path("durations/", view(self.durations_view), name="delayedq_dashboard_durations"),
            path("threads/", view(self.threads_view), name="delayedq_dashboard_threads"),
            path("find/", view(self.find_view), name="delayedq_dashboard_find"),
            path("task/", view(self.task_view), name="delayedq_dashboard_task"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """The first screen says what is wrong; the figures, which take longer, are one click away."""
        if request.GET.keys() & {"span", "kind", "queue"}:
            return self._figures(request)
        self.demand_view(request)
        return self.page(request, "now.html", _("Dashboard"), {"tab": "now", "refreshed": 5, **now_of(request)})

    def _figures(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        span = chosen_in(Span, request.GET.get("span"), Span.HOUR)
        now, only = self.store.now(), _only(request)
        found = figures(self.store, span, now, **only)
        charts = charts_of(found)
        return self.page(
            request,
            "dashboard.html",
            _("Dashboard"),
            tab="figures",
            choices=choices(SPANS),
            choice_name="span",
            chosen=span,
            span=span,
            only=[visible(name) for name in only.values()],
            query=urlencode(only),
            refreshed=REFRESHED[span],
            totals=[*totals_of(found, now), (_("due now"), str(due_now(self.store, now, only)), "")],
            one_in=round(found.one_in),
            failed_one_in=round(found.failed_one_in),
            charts=charts,
            drawn=[chart.drawn() for chart in charts],
        )

    def durations_view(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        span = chosen_in(Span, request.GET.get("span"), Span.HOUR)
        is_thorough = "thorough" in request.GET
        found = durations(self.store, span, times=THOROUGH if is_thorough else USUAL)
        sort = request.GET["sort"] if request.GET.get("sort") in SORTS else "run"
        context = {"one_in": round(found.one_in), "tables": tables(request, found, sort), "tab": "durations"}
        orders = [(name, label, name == sort) for name, (label, _value) in SORTS.items()]
        chosen = {"choices": choices(SPANS), "choice_name": "span", "chosen": span, "is_thorough": is_thorough}
        context |= {"orders": orders, "query": urlencode({"sort": sort})}
        return self.page(request, "durations.html", _("Durations"), {**context, **chosen})

    def threads_view(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        span = chosen_in(BusySpan, request.GET.get("span"), BusySpan.DAY)
        context = busy_threads.context_of(self.store, span, self.store.now())
        return self.page(request, "threads.html", _("Busy threads"), context)

    def forecast_view(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        ahead = chosen_in(Ahead, request.GET.get("ahead"), Ahead.DAY)
        now = self.store.now()
        found = forecast(self.store, ahead, now)
        stampeding = stampedes_in(self.store, found)
        return self.page(
            request,
            "forecast.html",
            _("Forecast"),
            tab="forecast",
            choices=choices(AHEADS),
            choice_name="ahead",
            chosen=ahead,
            ahead=ahead,
            found=found,
            one_in=round(found.one_in),
            heat=heat_map(ahead, found.minutes, stampeding),
            hours=hours(found.minutes),
            stampedes=[
                (minute, exact(minute.start), query_between(minute.start, MINUTE), _local(minute))
                for minute in stampeding[:SHOWN]
            ],
            held_back=[_held_back(one, now) for one in found.limited.held_back[:SHOWN]],
            more_stampedes=len(stampeding[SHOWN:]),
            most_ticks=MOST_TICKS,
            may_look=may(request, "view_message"),
            may_spread=may(request, "view_message") and may(request, "reschedule_message"),
        )


def _held_back(one: HeldBack, now: datetime) -> tuple[str, str, str, str]:
    """The name of a limit, its terms, how many wait for it, and when the last can start; "": it is paused."""
    until = "" if one.until is None else both(one.until, now)
    return name_of(one.scope, one.channel), terms_of(one.limit), grouped(one.waiting), until


def _only(request: HttpRequest) -> dict[str, str]:
    """The one task, or queue, that is asked for. Raises Http404 for what can't be the name of one."""
    only = {name: request.GET[name] for name in ("kind", "queue") if request.GET.get(name)}
    if not all(is_storable(name) and len(name) <= NAME_LENGTH for name in only.values()):
        raise Http404(_("There is no task or queue of this name."))
    return only


def _local(minute: Minute) -> str:
    """Its start in local time, in the format of a `datetime-local` input."""
    return f"{timezone.localtime(minute.start):%Y-%m-%dT%H:%M:%S}"
