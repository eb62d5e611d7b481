"""The queues, with how much waits in each, and the workers; queues are paused and resumed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.http import HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq.admin.base import demand, may, visible
from delayedq.admin.channels import ChannelPages
from delayedq.admin.moments import when
from delayedq.admin.state_pages import StatePages, worker_links
from delayedq.core.limits import is_storable
from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedQueue
from delayedq.operations.pauses import pause, resume
from delayedq.operations.queues import queue_states
from delayedq.operations.rules import LATE
from delayedq.operations.wording import both, grouped, span
from delayedq.operations.workers import SHOWN, all_workers, current_messages, is_alive, running_ids

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.models import Message, Worker
    from delayedq.operations.queues import QueueState, Trend
    from delayedq.store.base import Store

#: The size of a sparkline, in units of its viewBox.
WIDTH, HEIGHT = 120, 24


class Row(NamedTuple):
    """A queue in the list."""

    name: str
    url: str
    is_pausable: bool
    state: str
    paused: str
    pause_url: str
    resume_url: str
    due: str
    scheduled: str
    oldest: SafeString | str
    workers: int
    spark: Spark


class Spark(NamedTuple):
    """A sparkline: the points of two SVG polylines, and a text alternative."""

    ended: str
    failed: str
    words: str


class WorkerRow(NamedTuple):
    """A worker in the list. `messages`: at most SHOWN of those it runs; `more`: how many others it runs."""

    name: str
    is_alive: bool
    queues: str
    threads: int
    problems: str
    held: int
    started: SafeString | str
    seen: SafeString | str
    messages: list[Message]
    more: int
    links: list[tuple[str, str]]


@admin.register(PausedQueue)
class QueueAdmin(StatePages, ChannelPages):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            *self.state_urls(),
            *self.channel_urls(),
            path("", view(self.changelist_view), name="delayedq_pausedqueue_changelist"),
            path("pause/", view(self.pause_view), name="delayedq_pausedqueue_pause"),
            path("resume/", view(self.resume_view), name="delayedq_pausedqueue_resume"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        now = self.store.now()
        context = {
            "rows": [_row(state, now) for state in queue_states(self.store, now)],
            "workers": _worker_rows(self.store, now),
            "may_pause": may(request, "pause_queue"),
            **self.state_context(request, now),
        }
        return self.page(request, "queues.html", _("Queues"), {**context, **(extra_context or {})})

    # Pausing

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: pause the queue."""
        self.demand_view(request)
        demand(request, "pause_queue")
        name = request.GET.get("queue", "")
        if request.method == "POST":
            return self._pause(request, name)
        words = _(
            "Workers will claim nothing more from %(queue)s until it is resumed. Messages that are running will finish."
        )
        title, said = _("Pause %(queue)s?") % {"queue": visible(name)}, words % {"queue": visible(name)}
        return self._confirm(request, title, said, _("Pause the queue"), _("Let it run"))

    def _pause(self, request: HttpRequest, name: str) -> HttpResponse:
        try:
            paused = pause(name, request.user.get_username())
        except InvalidQueue as error:
            messages.error(request, visible(str(error)))
            return self._back()
        if paused and (row := self._paused(name)):
            self.log_change(request, row, _("Paused."))
            messages.success(request, _("Queue %(queue)s is paused.") % {"queue": visible(name)})
        else:
            messages.info(request, _("Queue %(queue)s was already paused.") % {"queue": visible(name)})
        return self._back()

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        demand(request, "pause_queue")
        name = request.GET.get("queue", "")
        if request.method == "POST":
            return self._resume(request, name)
        title = _("Resume %(queue)s?") % {"queue": visible(name)}
        said = _("Workers will claim from %(queue)s again.") % {"queue": visible(name)}
        return self._confirm(request, title, said, _("Resume the queue"), _("Leave it paused"))

    def _resume(self, request: HttpRequest, name: str) -> HttpResponse:
        row = self._paused(name)
        if row is not None and resume(name):
            self.log_change(request, row, _("Resumed."))
            messages.success(request, _("Queue %(queue)s is resumed.") % {"queue": visible(name)})
        else:
            messages.info(request, _("Queue %(queue)s is not paused.") % {"queue": visible(name)})
        return self._back()

    def _paused(self, name: str) -> PausedQueue | None:
        if not is_storable(name):
            return None
        return PausedQueue.objects.using(self.store.alias).filter(queue=name).first()

    def _confirm(self, request: HttpRequest, title: str, said: str, verb: str, keep: str) -> HttpResponse:
        context = {"verb": verb, "keep": keep, "said": said, "back": _list_url()}
        return self.page(request, "confirm_state.html", title, context)

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(_list_url())


def _list_url() -> str:
    return reverse("admin:delayedq_pausedqueue_changelist")


def _row(state: QueueState, now: datetime) -> Row:
    name = urlencode({"queue": state.name})
    return Row(
        name=visible(state.name),
        url=f"{reverse('admin:delayedq_message_changelist')}?{name}",
        is_pausable=state.is_pausable,
        state=_state(state, now),
        paused=_paused_words(state.paused, now),
        pause_url=f"{reverse('admin:delayedq_pausedqueue_pause')}?{name}",
        resume_url=f"{reverse('admin:delayedq_pausedqueue_resume')}?{name}",
        due=str(state.due),
        scheduled=str(state.scheduled),
        oldest=when(state.oldest, now),
        workers=state.workers,
        spark=sparkline(state.trend),
    )


def _paused_words(paused: PausedQueue | None, now: datetime) -> str:
    if paused is None:
        return ""
    at = both(paused.paused_at, now)
    if not paused.paused_by:
        return _("paused %(time)s") % {"time": at}
    return _("paused by %(name)s %(time)s") % {"name": visible(paused.paused_by), "time": at}


def _state(state: QueueState, now: datetime) -> str:
    """As the rules of the verdict say it: a queue is late here if it is a finding there."""
    if state.paused is not None:
        return "paused"
    if not state.is_pausable:
        return "polled by code"
    if not state.workers:
        return "no live worker"
    return "late" if state.oldest is not None and now - state.oldest >= LATE else "served"


def sparkline(trend: Trend) -> Spark:
    top = max(trend.ended, default=0)
    failed = sum(trend.failed)
    words = _("%(ended)s ended, %(failed)s of them failed, in the last %(span)s") % {
        "ended": grouped(sum(trend.ended)),
        "failed": grouped(failed),
        "span": span(trend.window),
    }
    return Spark(points(trend.ended, top), points(trend.failed, top) if failed else "", words)


def points(counts: Sequence[int], top: int) -> str:
    """The counts from left to right, as the points of a polyline; 0 is at the bottom, `top` at the top."""
    step, scale = WIDTH / max(len(counts) - 1, 1), (HEIGHT - 2) / max(top, 1)
    return " ".join(f"{number * step:.1f},{HEIGHT - 1 - count * scale:.1f}" for number, count in enumerate(counts))


def _worker_rows(store: Store, now: datetime) -> list[WorkerRow]:
    workers = all_workers(store)
    current = current_messages(store, workers)
    return [_worker_row(worker, current[worker.name], now) for worker in workers]


def _served(worker: Worker) -> str:
    """The queues that it serves, in words."""
    if worker.excluded_queues:
        return _("all but %(queues)s") % {"queues": visible(worker.excluded_queues.replace(",", ", "))}
    return visible(worker.queues.replace(",", ", ")) or pgettext("queues", "all")


def _worker_row(worker: Worker, current: list[Message], now: datetime) -> WorkerRow:
    return WorkerRow(
        name=visible(worker.name),
        is_alive=is_alive(worker, now),
        queues=_served(worker),
        threads=worker.threads,
        problems=visible(worker.problems),
        held=worker.held,
        started=when(worker.started_at, now),
        seen=when(worker.seen_at, now),
        messages=current,
        more=max(0, len(running_ids(worker)) - SHOWN),
        links=worker_links(worker),
    )
