"""The page of one task: its settings, its figures, its last errors and its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404
from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import may
from delayedq.admin.charts import count
from delayedq.admin.figures import REFRESHED, SPANS, charts_of, choices, chosen_in, due_now, totals_of
from delayedq.admin.find import FindPages, may_see_tasks
from delayedq.admin.finished import rows as ended_rows
from delayedq.admin.finished import without_errors
from delayedq.core.backoff import Constant, Exponential, Listed
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.cron.admin import PAST, row_of
from delayedq.cron.definitions import definitions
from delayedq.cron.operator import ScheduleSelection, page_of_schedules
from delayedq.limits.admin import name_of
from delayedq.limits.declared import UNLIMITED
from delayedq.limits.operator import rules_here, terms_of
from delayedq.masking import shown
from delayedq.models import Outcome
from delayedq.operations.browsing import DEPTH, EndedSelection, ended_page
from delayedq.operations.figures import Span, durations_of, figures
from delayedq.operations.pauses import paused_now
from delayedq.operations.sending import is_sendable
from delayedq.operations.wording import seconds, span, visible
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from django.http import HttpRequest, HttpResponse

    from delayedq.cron.admin import ScheduleRow
    from delayedq.store.figures import Durations
    from delayedq.tasks import Task

#: So many of its last errors, and of its schedules, are shown.
ERRORS, SCHEDULES = 5, 10


class TaskPages(FindPages):
    """A part of the admin of the dashboard."""

    def task_view(self, request: HttpRequest) -> HttpResponse:
        """`?name=`: the path of a task, whether it is registered here or not. Each part needs its own permission."""
        if not may_see_tasks(request):
            raise PermissionDenied
        path = request.GET.get("name", "")
        if not path or not is_storable(path) or len(path) > NAME_LENGTH:
            raise Http404(_("There is no task of this name."))
        now, task = self.store.now(), registered.get(path)
        is_paused = path in paused_now(self.store).kinds
        context: dict[str, Any] = {
            "now": now,
            "path": visible(path),
            "kind": path,
            "states": [name for name, holds in (("not defined", task is None), ("paused", is_paused)) if holds],
            "facts": [] if task is None else [*facts_of(task)],
            "links": [*self._links(request, path, task, is_paused=is_paused)],
        }
        if may(request, "view_dashboard"):
            context |= self._figures_of(request, path, now)
        if may(request, "view_finishedmessage"):
            context |= self._errors(request, path, now)
        if may(request, "view_cronschedule"):
            context |= self._schedules(path, now)
        return self.rendered(request, "task.html", visible(path.rpartition(".")[2]), context)

    def _links(
        self, request: HttpRequest, path: str, task: Task[..., Any] | None, *, is_paused: bool
    ) -> Iterator[tuple[str, str]]:
        def to(name: str, **query: str) -> str:
            return f"{reverse(f'admin:delayedq_{name}')}?{urlencode(query)}"

        if may(request, "view_message"):
            yield _("Live messages"), to("message_changelist", kind=path)
        if may(request, "view_finishedmessage"):
            yield _("History"), to("finishedmessage_changelist", kind=path)
            yield _("Dead letters"), to("finishedmessage_changelist", kind=path, outcome=Outcome.FAILED.value)
        if may(request, "send_message") and task is not None and is_sendable(task, self.store):
            yield _("Send a message"), to("message_send", task=path)
        if may(request, "pause_queue"):
            verb, label = ("resume_task", _("Resume")) if is_paused else ("pause_task", _("Pause"))
            yield label, to(f"pausedqueue_{verb}", task=path)

    def _figures_of(self, request: HttpRequest, path: str, now: datetime) -> dict[str, Any]:
        chosen = chosen_in(Span, request.GET.get("span"), Span.HOUR)
        found = figures(self.store, chosen, now, kind=path)
        charts = charts_of(found)
        due = (_("due now"), str(due_now(self.store, now, {"kind": path})), "")
        return {
            "choices": choices(SPANS),
            "chosen": chosen,
            "query": urlencode({"name": path}),
            "refreshed": REFRESHED[chosen],
            "totals": [*totals_of(found, now), due],
            "durations": _durations(durations_of(self.store, path, found.ended)),
            "one_in": round(found.one_in),
            "charts": charts,
            "drawn": [chart.drawn() for chart in charts],
        }

    def _errors(self, request: HttpRequest, path: str, now: datetime) -> dict[str, Any]:
        """Its latest dead letters; what errors say, only for those who may see it."""
        reads = may(request, "view_payload")
        page = ended_page(self.store, EndedSelection(outcome=Outcome.FAILED, kind=path))
        rows = ended_rows([shown(one, payload=reads) for one in page.rows[:ERRORS]], now, payload=reads)
        if not reads:
            rows = without_errors(rows)
        return {"has_errors": True, "errors": rows, "errors_depth": DEPTH if page.is_cut else 0}

    def _schedules(self, path: str, now: datetime) -> dict[str, Any]:
        try:
            defined = definitions()
        except ImproperlyConfigured:  # the page of schedules says what is wrong
            defined = {}
        chosen = ScheduleSelection(kind=path)
        found = page_of_schedules(self.store, defined, now, count=SCHEDULES, selection=chosen, past=PAST)
        rows: list[ScheduleRow] = [row_of(known, now) for known in found.schedules]
        return {"schedules": rows, "more_schedules": found.total - len(rows)}


def _durations(found: Durations | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    return [
        (_("Wait, p50"), seconds(found.wait_p50)),
        (_("Wait, p95"), seconds(found.wait_p95)),
        (_("Run, p50"), seconds(found.run_p50)),
        (_("Run, p95"), seconds(found.run_p95)),
        (_("Longest run"), seconds(found.slowest)),
    ]


# The settings of a task in words


def facts_of(task: Task[..., Any]) -> Iterator[tuple[str, str]]:
    """Name and value of each setting that is set; those that a worker's code has, as this process knows it."""
    where = {"queue": visible(task.queue_name), "priority": task.priority}
    yield _("Queue"), _("%(queue)s, priority %(priority)s") % where
    yield _("Attempts"), count(task.max_attempts)
    yield _("Delay between attempts"), backoff_words(task.backoff)
    for name, value in _times(task):
        if value is not None:
            yield name, span(value)
    if task.exactly_once:
        yield _("Transaction"), _("exactly once")
    if task.interruptible:
        yield _("When cancelled"), _("interrupted")
    if task.sensitive:
        names = _("all arguments and the result") if task.sensitive is True else ", ".join(sorted(task.sensitive))
        yield _("Masked"), visible(names)
    yield from _limits(task)


def _times(task: Task[..., Any]) -> list[tuple[str, timedelta | None]]:
    return [
        (_("Timeout"), task.timeout),
        (_("Deadline"), task.deadline),
        (_("Expires"), task.expires),
        (_("Results are kept"), task.result_retention),
    ]


def _limits(task: Task[..., Any]) -> Iterator[tuple[str, str]]:
    rules = rules_here(task.queue_name, task.module_path)
    if rules.channel is not None:
        yield _("Limit of each channel"), terms_of(rules.channel)
    for scope, limit in rules.scopes:
        if limit != UNLIMITED:
            yield _("Limit of %(name)s") % {"name": name_of(scope, "")}, terms_of(limit)


def backoff_words(backoff: Any) -> str:
    """The delays between attempts in words."""
    if isinstance(backoff, Constant):
        return span(backoff.delay)
    if isinstance(backoff, Listed):
        return ", ".join(span(delay) for delay in backoff.delays)
    if isinstance(backoff, Exponential):
        given = {"first": span(backoff.initial), "times": f"{backoff.factor:g}", "most": span(backoff.maximum)}
        return _("%(first)s, each %(times)s times the last, at most %(most)s") % given
    return visible(getattr(backoff, "__name__", type(backoff).__name__))
