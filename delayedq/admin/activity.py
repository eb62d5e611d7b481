"""What goes on now, as the dashboard and the index of the app show it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.db import Error
from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import may
from delayedq.admin.charts import count
from delayedq.admin.figures import rate_of
from delayedq.admin.moments import when
from delayedq.core.outlook import Outlook, Trend
from delayedq.operations.activity import Activity, Utilisation, activity, next_messages, next_ticks
from delayedq.operations.archived import archive_steps
from delayedq.operations.wording import exact, grouped, seconds, span, visible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from delayedq.operations.archived import ScheduledStep
    from delayedq.store.base import Store

#: A backlog that takes longer is told to be empty in more than this.
FARTHEST = timedelta(days=30)


#: So many of what comes next are shown.
SHOWN = 5


class NextRow(NamedTuple):
    at: SafeString | str
    name: str
    url: str
    kind: str


class StepRow(NamedTuple):
    """A scheduled step of an archive. `state`: of its last run; "" if there was none."""

    name: str
    url: str
    last: SafeString | str
    state: str
    following: SafeString | str


class BusyRow(NamedTuple):
    """`share`: of the threads, from 0 to 100."""

    name: str
    busy: str
    average: str
    share: int


def activity_of(request: HttpRequest, store: Store, now: datetime) -> dict[str, Any]:
    """The context of `_activity.html`; empty if the database does not answer, which the verdict says."""
    try:
        found = activity(store, now)
        coming = [*_next(request, store, now)]
        steps = archive_steps(store, now) if may(request, "view_cronschedule") else []
    except Error:
        return {}
    window = timedelta(seconds=found.window)
    return {
        "totals": [*_totals(found)],
        "window": span(window),
        "backlog": backlog_words(found.outlook, now, span(window)),
        "coming": coming,
        "steps": [_step(step, now, payload=may(request, "view_payload")) for step in steps],
        "busy_workers": [_busy(one) for one in found.workers],
        "busy_queues": [_busy(one, is_whole=found.is_whole) for one in found.queues],
        "more_workers": _part(len(found.workers), found.of_workers),
        "more_queues": _part(len(found.queues), found.of_queues),
        "may_view_queues": may(request, "view_pausedqueue"),
    }


def _totals(found: Activity) -> Iterator[tuple[str, str, str]]:
    minutes = found.window / 60
    yield _("ended"), count(found.ended), rate_of(found.ended, minutes)
    yield _("of them failed"), count(found.failed), ""
    yield _("p95 of latency"), seconds(found.p95), _("p50 %(latency)s") % {"latency": seconds(found.p50)}
    yield _("due now"), str(found.due), ""
    busy = {"busy": grouped(found.busy), "threads": grouped(found.threads)}
    average = _("%(number)s on average") % {"number": _bound(grouped(found.average, digits=1), is_whole=found.is_whole)}
    yield _("busy threads"), _("%(busy)s of %(threads)s") % busy, average


def backlog_words(outlook: Outlook, now: datetime, window: str) -> str:
    """When the backlog will be empty, in one sentence; "": there is none."""
    given = {"window": window}
    if outlook.trend is Trend.EMPTY:
        return ""
    if outlook.trend is Trend.STAYS:
        return _("The backlog does not shrink: in the last %(window)s, at least as much fell due as ended.") % given
    if outlook.trend is Trend.UNSURE or outlook.about is None or outlook.earliest is None or outlook.latest is None:
        return (
            _("When the backlog will be empty can't be said: the rates of the last %(window)s vary too much.") % given
        )
    if outlook.latest > FARTHEST.total_seconds():
        return _("The backlog shrinks, but will not be empty within %(span)s.") % {"span": span(FARTHEST)}
    at, first, last = (exact(now + timedelta(seconds=one)) for one in (outlook.about, outlook.earliest, outlook.latest))
    times = {"at": at, "first": first, "last": last, **given}
    return _("Backlog empty at about %(at)s (from %(first)s to %(last)s, at the rates of the last %(window)s).") % times


def _busy(one: Utilisation, *, is_whole: bool = True) -> BusyRow:
    number = _bound(grouped(one.busy), is_whole=is_whole)
    busy = _("%(busy)s of %(threads)s") % {"busy": number, "threads": grouped(one.threads)}
    average = "" if one.average is None else _bound(grouped(one.average, digits=1), is_whole=is_whole)
    return BusyRow(visible(one.name), busy, average, min(100, round(100 * one.busy / max(one.threads, 1))))


def _bound(number: str, *, is_whole: bool) -> str:
    """The number, or that there are at least so many."""
    return number if is_whole else _("at least %(number)s") % {"number": number}


def _part(shown: int, number: int) -> str:
    """Such as "10 of 300"; "" if all are shown."""
    given = {"shown": grouped(shown), "number": grouped(number)}
    return _("%(shown)s of %(number)s") % given if shown < number else ""


def _next(request: HttpRequest, store: Store, now: datetime) -> Iterator[NextRow]:
    """Messages and ticks, of what the user may view, in the order of time."""
    found: list[tuple[datetime, NextRow]] = []
    ticks = next_ticks(store, now) if may(request, "view_cronschedule") else []
    for at, name in ticks:
        found.append((at, NextRow(when(at, now), visible(name), _schedule_url(name), "")))
    for row in next_messages(store, now) if may(request, "view_message") else []:
        key = row.key or ""
        if not any(at == row.scheduled_at and key.startswith(f"{name}/") for at, name in ticks):  # else it is told
            url = reverse("admin:delayedq_message_change", args=[row.pk])
            name = visible(key) or f"#{row.pk}"
            found.append((row.scheduled_at, NextRow(when(row.scheduled_at, now), name, url, visible(row.kind))))
    yield from (shown for _at, shown in sorted(found, key=lambda one: one[0])[:SHOWN])


def _step(step: ScheduledStep, now: datetime, *, payload: bool) -> StepRow:
    """`payload` False: the reader may not see arguments, only which step it is."""
    name = visible(" ".join(step.arguments if payload else step.arguments[:1]))
    return StepRow(name, _schedule_url(step.schedule), when(step.last, now), step.state, when(step.following, now))


def _schedule_url(name: str) -> str:
    return f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': name})}"
