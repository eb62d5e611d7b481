"""The queues, with how much waits in each, and the workers; queues are paused and resumed here."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.http import Http404
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from delayedq.admin.ask import Ask, AskingAdmin, Reply, who_and_why
from delayedq.admin.base import may
from delayedq.admin.filters import ANY, ListFilter
from delayedq.admin.lists import chips_of, page_of, paging
from delayedq.admin.marks import STATES
from delayedq.admin.moments import when
from delayedq.admin.names import NamePages, Suggested
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.limits.admin import ChannelPages
from delayedq.models import PausedQueue, PausedTask, Worker
from delayedq.operations.acts import pause_one_task, pause_queues, resume_one_task, resume_queues
from delayedq.operations.pauses import is_pausable, known_queues
from delayedq.operations.queues import Queues
from delayedq.operations.reading import of_one_reading
from delayedq.operations.verdict import late_queues
from delayedq.operations.wording import both, grouped, relative, span, visible
from delayedq.operations.workers import (
    SHOWN,
    all_workers,
    ask,
    current_messages,
    is_alive,
    lost_runs,
    running_ids,
    serves,
)
from delayedq.store.registry import WorkerCommand
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.admin.names import Named
    from delayedq.models import Message
    from delayedq.operations.queues import QueueState, Trend
    from delayedq.store.base import Store

# Pages that pause a task or all queues, and that quiet, stop or restart a worker process.


#: What is said before a worker is asked, by what it is asked; "": to take it back.
SAID = {
    WorkerCommand.QUIET.value: gettext_lazy(
        "It claims nothing more, and lives on. What runs or is prefetched will finish."
    ),
    WorkerCommand.STOP.value: gettext_lazy(
        "It claims nothing more, lets what runs finish within its shutdown timeout, and ends. What has not started is "
        "given back. Its supervisor starts no other process in its place."
    ),
    WorkerCommand.RESTART.value: gettext_lazy(
        "It claims nothing more, lets what runs finish within its shutdown timeout, and ends. Its supervisor starts "
        "another process in its place."
    ),
    "": gettext_lazy("What it was asked is taken back, unless it has begun to end."),
}

LABELS = {
    WorkerCommand.QUIET.value: gettext_lazy("Quiet"),
    WorkerCommand.STOP.value: gettext_lazy("Stop"),
    WorkerCommand.RESTART.value: gettext_lazy("Restart"),
    "": gettext_lazy("Go on"),
}


class QueueFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Name has"), required=False, max_length=NAME_LENGTH)
    state = forms.ChoiceField(
        label=gettext_lazy("State"),
        required=False,
        choices=[
            ANY,
            *((one, STATES[one]) for one in ("paused", "polled by code", "no live worker", "late", "served")),
        ],
    )

    def chosen(self, queues: Queues, late: Container[str]) -> list[str]:
        """The names of the queues that it selects; none if it is not valid."""
        if not self.is_valid():
            return []
        text, state = self.cleaned_data["q"].casefold(), self.cleaned_data["state"]
        named = [name for name in queues.names if text in name.casefold()]
        return [name for name in named if not state or state == _state(queues, name, is_late=name in late)]


class WorkerFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Name has"), required=False, max_length=NAME_LENGTH)
    queue = forms.CharField(label=gettext_lazy("Queue"), required=False, strip=False, max_length=NAME_LENGTH)
    state = forms.ChoiceField(
        label=gettext_lazy("State"),
        required=False,
        choices=[
            ANY,
            ("alive", gettext_lazy("alive")),
            ("silent", STATES["silent"]),
            ("problems", gettext_lazy("with problems")),
            ("asked", gettext_lazy("asked to end")),
        ],
    )

    def chosen(self, workers: Sequence[Worker], now: datetime) -> list[Worker]:
        """Those that it selects, in their order; none if it is not valid."""
        if not self.is_valid():
            return []
        given = self.cleaned_data
        states = {"alive": lambda one: is_alive(one, now), "silent": lambda one: not is_alive(one, now)}
        states |= {"problems": lambda one: bool(one.problems), "asked": lambda one: bool(one.asked)}
        return [
            worker
            for worker in workers
            if given["q"].casefold() in worker.name.casefold()
            and (not given["queue"] or serves(worker, given["queue"]))
            and (not given["state"] or states[given["state"]](worker))
        ]


class StatePages(NamePages, AskingAdmin):
    """A part of the admin of queues."""

    named: ClassVar[Named] = {"task": lambda _store: registered}
    takes_names = "pause-task/"

    def state_urls(self) -> list[URLPattern]:
        views: dict[str, Callable[..., HttpResponse]] = {
            "pause-all": self.pause_all_view,
            "resume-all": self.resume_all_view,
            "pause-task": self.pause_task_view,
            "resume-task": self.resume_task_view,
            "worker": self.worker_view,
            "workers": self.workers_view,
        }
        return [
            path(f"{name}/", self.admin_site.admin_view(view), name=f"delayedq_pausedqueue_{name.replace('-', '_')}")
            for name, view in views.items()
        ]

    def state_context(self, request: HttpRequest, now: datetime) -> dict[str, Any]:
        """What the list of queues shows of it."""
        paused = PausedTask.objects.using(self.store.alias).order_by("kind")
        return {
            "paused_tasks": [
                (
                    visible(row.kind),
                    _said_of(row, now),
                    f"{reverse('admin:delayedq_pausedqueue_resume_task')}?{urlencode({'task': row.kind})}",
                )
                for row in paused
            ],
            "task_field": Suggested("task").render("task", "", {"id": "dq-task", "required": True}),
            "may_stop": may(request, "stop_worker"),
        }

    def names_view(self, request: HttpRequest) -> HttpResponse:
        """The names of tasks: each link pauses one, so they are for who may."""
        self.demand(request, "pause_queue")
        return super().names_view(request)

    # Pauses

    def pause_all_view(self, request: HttpRequest) -> HttpResponse:
        """Pause all known queues."""
        self.demand(request, "pause_queue")
        names = ", ".join(visible(name) for name in sorted(known_queues(self.store)))
        said = _("Workers will claim nothing more from %s. Queues that are made later are not paused.") % names

        def do() -> Reply:
            paused = pause_queues(self.store, None, *who_and_why(request))
            return Reply(_("Paused: %s.") % (visible(", ".join(paused)) or _("nothing more")), is_recorded=True)

        return self.ask(request, Ask(_("Pause"), _("Pause all queues?"), said, _list_url()), do)

    def resume_all_view(self, request: HttpRequest) -> HttpResponse:
        """Resume all paused queues."""
        self.demand(request, "pause_queue")
        names = ", ".join(visible(name) for name in sorted(self.store.paused()))
        said = _("Workers will claim again from %s, also from those that were paused one by one.") % (names or "-")

        def do() -> Reply:
            resumed = resume_queues(self.store, None, *who_and_why(request))
            return Reply(_("Resumed: %s.") % (visible(", ".join(resumed)) or _("nothing")), is_recorded=True)

        return self.ask(request, Ask(_("Resume"), _("Resume all queues?"), said, _list_url()), do)

    def pause_task_view(self, request: HttpRequest) -> HttpResponse:
        """Pause a task. A path that is not registered here is warned of: other processes may run it."""
        self.demand(request, "pause_queue")
        kind, name = _named(request, "task")
        said = _("Workers will claim no more messages of %s until it is resumed. Those that run will finish.") % name

        def do() -> Reply:
            did = pause_one_task(self.store, kind, *who_and_why(request))
            told = _("Paused: %s.") if did else _("Already paused: %s.")
            return Reply(told % name, did, is_recorded=True)

        asked = Ask(_("Pause"), _("Pause %s?") % name, said, _list_url(), warning=_unknown(kind))
        return self.ask(request, asked, do)

    def resume_task_view(self, request: HttpRequest) -> HttpResponse:
        """Resume a task."""
        self.demand(request, "pause_queue")
        kind, name = _named(request, "task")
        said = _("Workers will claim messages of %s again.") % name

        def do() -> Reply:
            did = resume_one_task(self.store, kind, *who_and_why(request))
            return Reply((_("Resumed: %s.") if did else _("Not paused: %s.")) % name, did, is_recorded=True)

        return self.ask(request, Ask(_("Resume"), _("Resume %s?") % name, said, _list_url()), do)

    # Workers

    def workers_view(self, request: HttpRequest) -> HttpResponse:
        """All workers, those that are silent or have problems first."""
        self.demand_view(request)
        now, asked = self.store.now(), WorkerFilter(request.GET)
        workers = asked.chosen(_worst_first(all_workers(self.store), now), now)
        shown, following = page_of(request, workers)
        said = ngettext("%(number)s worker", "%(number)s workers", len(workers)) % {"number": grouped(len(workers))}
        context = {
            "filter": asked,
            "chips": chips_of(asked, request.GET, ""),
            "workers": _worker_rows(self.store, shown, now),
            "may_stop": may(request, "stop_worker"),
            **paging(request, following, said),
        }
        return self.page(request, "workers.html", _("Workers"), context)

    def worker_view(self, request: HttpRequest) -> HttpResponse:
        """Ask something of a worker, which reads it with its next heartbeat."""
        self.demand(request, "stop_worker")
        (name, shown), asked = _named(request, "name"), request.GET.get("ask", "")
        workers = Worker.objects.using(self.store.alias)
        if asked not in SAID or not is_storable(name) or not workers.filter(name=name).exists():
            raise Http404("There is no such worker, or nothing of this kind to ask.")
        given = {"label": LABELS[asked], "name": shown}
        title, said = _("%(label)s: worker %(name)s?") % given, f"{SAID[asked]} {_('It is told within 10 s.')}"
        ends = asked in {WorkerCommand.STOP, WorkerCommand.RESTART}

        def do() -> Reply:
            did = ask(self.store, name, WorkerCommand(asked) if asked else None, request.user.get_username())
            told = _("%(label)s: worker %(name)s is told within 10 s.") if did else _("Worker %(name)s has ended.")
            return Reply(told % given, did)

        return self.ask(request, Ask(str(given["label"]), title, said, _list_url(), is_destructive=ends), do)


def _named(request: HttpRequest, parameter: str) -> tuple[str, str]:
    """A name in the address, as it is and as it is shown."""
    name = request.GET.get(parameter, "")
    return name, visible(name)


def _unknown(kind: str) -> SafeString | str:
    """What is said of the path of a task that is not registered here, with a link to the nearest one that is."""
    if kind in registered:
        return ""
    said = _("No task is registered here as %(name)s.") % {"name": visible(kind)}
    near = get_close_matches(kind, registered, 1)
    if not near:
        return said
    return format_html(
        '{} {} <a href="?{}">{}</a>', said, _("Did you mean this one?"), urlencode({"task": near[0]}), near[0]
    )


def worker_links(worker: Worker) -> list[tuple[str, str]]:
    """What a worker can be asked: labels and addresses."""
    url = reverse("admin:delayedq_pausedqueue_worker")
    asks = [""] if worker.asked else [request.value for request in WorkerCommand]
    return [(str(LABELS[asked]), f"{url}?{urlencode({'name': worker.name, 'ask': asked})}") for asked in asks]


def _said_of(row: PausedTask, now: datetime) -> str:
    words = _("paused by %(name)s %(time)s") if row.paused_by else _("paused %(time)s")
    return words % {"name": visible(row.paused_by), "time": relative(row.paused_at, now)}


def _list_url() -> str:
    return reverse("admin:delayedq_pausedqueue_changelist")


# Queues


#: So many workers are shown beside the queues; they have a page of their own.
WORKERS_SHOWN = 10

#: The size of a sparkline, in units of its viewBox.
WIDTH, HEIGHT = 120, 24


class QueueRow(NamedTuple):
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
    #: Ids of messages that were stopped and still hold a thread.
    lost: Sequence[int] = ()


@admin.register(PausedQueue)
class QueueAdmin(StatePages, ChannelPages):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            *self.state_urls(),
            *self.channel_urls(),
            path("", view(self.changelist_view), name="delayedq_pausedqueue_changelist"),
            path("names/", view(self.names_view), name="delayedq_pausedqueue_names"),
            path("pause/", view(self.pause_view), name="delayedq_pausedqueue_pause"),
            path("resume/", view(self.resume_view), name="delayedq_pausedqueue_resume"),
        ]

    @of_one_reading
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.demand_view(request)
        now, asked = self.store.now(), QueueFilter(request.GET)
        late, queues, workers = late_queues(self.store, now), Queues(self.store, now), all_workers(self.store)
        shown, following = page_of(request, asked.chosen(queues, late))
        said = ngettext("%(number)s queue", "%(number)s queues", len(asked.chosen(queues, late)))
        context = {
            "filter": asked,
            "chips": chips_of(asked, request.GET, ""),
            "rows": [_row(state, now, is_late=state.name in late) for state in queues.states(shown)],
            "workers": _worker_rows(self.store, _worst_first(workers, now)[:WORKERS_SHOWN], now),
            "more_workers": max(0, len(workers) - WORKERS_SHOWN),
            "may_pause": may(request, "pause_queue"),
            **paging(request, following, said % {"number": grouped(len(asked.chosen(queues, late)))}),
            **self.state_context(request, now),
        }
        return self.page(request, "queues.html", _("Queues"), {**context, **(extra_context or {})})

    # Pausing

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Pause a queue."""
        self.demand(request, "pause_queue")
        queue, name = _named(request, "queue")
        said = _(
            "Workers will claim nothing more from %(queue)s until it is resumed. Messages that are running will finish."
        ) % {"queue": name}

        def do() -> Reply:
            if pause_queues(self.store, [queue], *who_and_why(request)) and (row := self._paused(queue)):
                told = _("Queue %(queue)s is paused.") % {"queue": name}
                return Reply(told, logged=_("Paused."), of=row, is_recorded=True)
            return Reply(_("Queue %(queue)s was already paused.") % {"queue": name}, did=False)

        title = _("Pause %(queue)s?") % {"queue": name}
        return self.ask(request, Ask(_("Pause the queue"), title, said, _list_url(), _("Let it run")), do)

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Resume a queue."""
        self.demand(request, "pause_queue")
        queue, name = _named(request, "queue")

        def do() -> Reply:
            row = self._paused(queue)
            if row is not None and resume_queues(self.store, [queue], *who_and_why(request)):
                told = _("Queue %(queue)s is resumed.") % {"queue": name}
                return Reply(told, logged=_("Resumed."), of=row, is_recorded=True)
            return Reply(_("Queue %(queue)s is not paused.") % {"queue": name}, did=False)

        title, said = _("Resume %(queue)s?"), _("Workers will claim from %(queue)s again.")
        given = title % {"queue": name}, said % {"queue": name}
        return self.ask(request, Ask(_("Resume the queue"), *given, _list_url(), _("Leave it paused")), do)

    def _paused(self, name: str) -> PausedQueue | None:
        if not is_storable(name):
            return None
        return PausedQueue.objects.using(self.store.alias).filter(queue=name).first()


def _row(state: QueueState, now: datetime, *, is_late: bool) -> QueueRow:
    name = urlencode({"queue": state.name})
    return QueueRow(
        name=visible(state.name),
        url=f"{reverse('admin:delayedq_message_changelist')}?{name}",
        is_pausable=state.is_pausable,
        state=_state_of(state.name, state.paused, state.workers, is_late=is_late),
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


def _state(queues: Queues, name: str, *, is_late: bool) -> str:
    return _state_of(name, queues.paused.get(name), queues.workers_of(name), is_late=is_late)


def _state_of(name: str, paused: PausedQueue | None, workers: int, *, is_late: bool) -> str:
    if paused is not None:
        return "paused"
    if not is_pausable(name):
        return "polled by code"
    if not workers:
        return "no live worker"
    return "late" if is_late else "served"


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


def _worker_rows(store: Store, workers: Sequence[Worker], now: datetime) -> list[WorkerRow]:
    current, lost = current_messages(store, workers), lost_runs(store, workers)
    return [
        _worker_row(worker, current[worker.name], now)._replace(lost=lost.get(worker.name, ())) for worker in workers
    ]


def _worst_first(workers: Sequence[Worker], now: datetime) -> list[Worker]:
    """Those that are silent or have problems first; by name among them."""
    return sorted(workers, key=lambda worker: (is_alive(worker, now) and not worker.problems, worker.name))


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
