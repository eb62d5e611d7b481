"""The dashboard: figures of the last hour, day or week, and a forecast of the next day or week."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.http import Http404
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.base import ReadOnlyAdmin, may, visible
from delayedq.admin.channels import name_of
from delayedq.admin.charts import Chart, Series, count, seconds
from delayedq.admin.durations import tables
from delayedq.admin.heat import heat_map, hours, query_of
from delayedq.admin.verdict import verdict_of
from delayedq.core.limits import NAME_LENGTH, is_storable
from delayedq.models import Dashboard
from delayedq.operations.channels import terms_of
from delayedq.operations.counting import count_live
from delayedq.operations.durations import durations
from delayedq.operations.figures import Figures, Span, figures
from delayedq.operations.forecast import MINUTE, MOST_TICKS, Ahead, Minute, forecast, stampedes
from delayedq.operations.selecting import Selection
from delayedq.operations.wording import both, exact, grouped
from delayedq.store.operator import State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from delayedq.operations.counting import Count
    from delayedq.operations.limits_ahead import HeldBack
    from delayedq.store.base import Store

SPANS = {
    Span.HOUR: gettext_lazy("Last hour"),
    Span.DAY: gettext_lazy("Last day"),
    Span.WEEK: gettext_lazy("Last week"),
}
#: Seconds after which the figures are read again while somebody looks at them.
REFRESHED = {Span.HOUR: 15, Span.DAY: 60, Span.WEEK: 60}
AHEADS = {Ahead.DAY: gettext_lazy("Next day"), Ahead.WEEK: gettext_lazy("Next week")}
#: Rates below it are shown with a digit after the point.
MOST_PRECISE = 100
#: At most this many stampedes are listed.
SHOWN = 10


class Choice(NamedTuple):
    value: Span | Ahead
    label: str

    @property
    def name(self) -> str:
        return self.value.name


def choices(labels: Mapping[Any, Any]) -> list[Choice]:
    return [Choice(value, str(label)) for value, label in labels.items()]


@admin.register(Dashboard)
class DashboardAdmin(ReadOnlyAdmin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("forecast/", view(self.forecast_view), name="delayedq_dashboard_forecast"),
            path("durations/", view(self.durations_view), name="delayedq_dashboard_durations"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """The first screen says what is wrong; the figures, which take longer, are one click away."""
        if request.GET.keys() & {"span", "kind", "queue"}:
            return self._figures(request)
        self.demand_view(request)
        context = {"tab": "now", "refreshed": 5, "verdict": verdict_of(request, self.store, self.store.now())}
        return self.page(request, "now.html", _("Dashboard"), context)

    def _figures(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        span = _chosen(Span, request.GET.get("span"), Span.HOUR)
        now, only = self.store.now(), _only(request)
        found = figures(self.store, span, now, **only)
        charts = _charts(found)
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
            totals=[*_totals(found, now), (_("due now"), str(_backlog(self.store, now, only)), "")],
            one_in=round(found.one_in),
            failed_one_in=round(found.failed_one_in),
            charts=charts,
            drawn=[chart.drawn() for chart in charts],
        )

    def durations_view(self, request: HttpRequest) -> HttpResponse:
        span = _chosen(Span, request.GET.get("span"), Span.HOUR)
        found = durations(self.store, span)
        context = {"one_in": round(found.one_in), "tables": tables(found), "tab": "durations"}
        chosen = {"choices": choices(SPANS), "choice_name": "span", "chosen": span}
        return self.page(request, "durations.html", _("Durations"), {**context, **chosen})

    def forecast_view(self, request: HttpRequest) -> HttpResponse:
        ahead = _chosen(Ahead, request.GET.get("ahead"), Ahead.DAY)
        now = self.store.now()
        found = forecast(self.store, ahead, now)
        stampeding = stampedes(found.minutes)
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
                (minute, exact(minute.start), query_of(minute.start, MINUTE), _local(minute))
                for minute in stampeding[:SHOWN]
            ],
            held_back=[_held_back(one, now) for one in found.limited.held_back[:SHOWN]],
            more_stampedes=len(stampeding[SHOWN:]),
            most_ticks=MOST_TICKS,
            may_look=may(request, "view_message"),
            may_spread=may(request, "view_message") and may(request, "reschedule_message"),
        )


def _chosen[E: (Span, Ahead)](choices: type[E], asked: str | None, default: E) -> E:
    return next((choice for choice in choices if choice.name.lower() == asked), default)


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


def _backlog(store: Store, now: datetime, only: dict[str, str]) -> Count:
    chosen = Selection(as_of=now, state=State.DUE, queue=only.get("queue"), kind=only.get("kind"))
    return count_live(store, chosen)


def _totals(found: Figures, now: datetime) -> list[tuple[str, str, str]]:
    """Label, value and rate of each."""
    arrived, ended, failed = (
        sum(getattr(bucket, name) for bucket in found.buckets) for name in ("arrived", "ended", "failed")
    )
    minutes = (now - found.buckets[0].start).total_seconds() / 60
    worst = max((bucket.p95 for bucket in found.buckets if bucket.p95 is not None), default=None)
    return [
        (_("arrived"), count(arrived), _rate(arrived, minutes)),
        (_("finished"), count(ended), _rate(ended, minutes)),
        (_("of them failed"), count(failed), _rate(failed, minutes) if failed else ""),
        (_("worst p95 of latency"), seconds(worst), ""),
    ]


def _rate(number: int, minutes: float) -> str:
    rate = number / max(minutes, 1)
    return _("%(number)s per minute") % {"number": f"{rate:,.1f}" if rate < MOST_PRECISE else count(rate)}


def _charts(found: Figures) -> list[Chart]:
    def series(name: str, label: str, value: str, unit: str = "") -> Series:
        return Series(name, label, [getattr(bucket, value) for bucket in found.buckets], unit)

    times = [bucket.start for bucket in found.buckets]
    both = [series("arrived", _("arrived"), "arrived"), series("finished", _("finished"), "ended")]
    late = [series("p50", "p50", "p50", "s"), series("p95", "p95", "p95", "s")]
    if any(bucket.limited_p95 is not None for bucket in found.buckets):
        late.append(series("limited", _("p95 in channels"), "limited_p95", "s"))
    return [
        Chart("flow", _("Arrivals and finishes"), times, both),
        Chart("failures", _("Failures"), times, [series("failed", _("failed"), "failed")], bars=True),
        Chart("latency", _("Latency: how late messages started"), times, late),
    ]


def _local(minute: Minute) -> str:
    """Its start in local time, in the format of a `datetime-local` input."""
    return f"{timezone.localtime(minute.start):%Y-%m-%dT%H:%M:%S}"
