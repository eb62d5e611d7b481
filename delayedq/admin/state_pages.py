"""Pages that pause a task or all queues, and that quiet, stop or restart a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible
from delayedq.core.limits import is_storable
from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedTask, Worker
from delayedq.operations.pauses import known_queues, pause_all, pause_task, resume_all, resume_task
from delayedq.operations.wording import relative
from delayedq.operations.workers import ask
from delayedq.store.registry import Request
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

#: What is said before a worker is asked, by what it is asked; "": to take it back.
SAID = {
    Request.QUIET.value: gettext_lazy("It claims nothing more, and lives on. What runs or is prefetched will finish."),
    Request.STOP.value: gettext_lazy(
        "It claims nothing more, lets what runs finish within its shutdown timeout, and ends. What has not started is "
        "given back. Its supervisor starts no other process in its place."
    ),
    Request.RESTART.value: gettext_lazy(
        "It claims nothing more, lets what runs finish within its shutdown timeout, and ends. Its supervisor starts "
        "another process in its place."
    ),
    "": gettext_lazy("What it was asked is taken back, unless it has begun to end."),
}
LABELS = {
    Request.QUIET.value: gettext_lazy("Quiet"),
    Request.STOP.value: gettext_lazy("Stop"),
    Request.RESTART.value: gettext_lazy("Restart"),
    "": gettext_lazy("Go on"),
}


class StatePages(ReadOnlyAdmin):
    """A part of the admin of queues."""

    def state_urls(self) -> list[URLPattern]:
        views: dict[str, Callable[..., HttpResponse]] = {
            "pause-all": self.pause_all_view,
            "resume-all": self.resume_all_view,
            "pause-task": self.pause_task_view,
            "resume-task": self.resume_task_view,
            "worker": self.worker_view,
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
            "tasks": sorted({*registered} - {row.kind for row in paused}),
            "may_stop": may(request, "stop_worker"),
        }

    # Pauses

    def pause_all_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: pause all known queues."""
        self._demand(request, "pause_queue")
        if request.method != "POST":
            names = ", ".join(visible(name) for name in sorted(known_queues(self.store)))
            said = _("Workers will claim nothing more from %s. Queues that are made later are not paused.") % names
            return self._ask(request, _("Pause"), _("Pause all queues?"), said)
        paused = pause_all(request.user.get_username(), self.store)
        return self._done(request, _("Paused: %s.") % (visible(", ".join(paused)) or _("nothing more")))

    def resume_all_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: resume all paused queues."""
        self._demand(request, "pause_queue")
        if request.method != "POST":
            names = ", ".join(visible(name) for name in sorted(self.store.paused()))
            said = _("Workers will claim again from %s, also from those that were paused one by one.") % (names or "-")
            return self._ask(request, _("Resume"), _("Resume all queues?"), said)
        resumed = resume_all(self.store)
        return self._done(request, _("Resumed: %s.") % (visible(", ".join(resumed)) or _("nothing")))

    def pause_task_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: pause the task."""
        self._demand(request, "pause_queue")
        kind = request.GET.get("task", "")
        if request.method != "POST":
            said = _("Workers will claim no more messages of %s until it is resumed. Those that run will finish.")
            return self._ask(request, _("Pause"), _("Pause %s?") % visible(kind), said % visible(kind))
        try:
            paused = pause_task(kind, request.user.get_username(), self.store)
        except InvalidQueue as error:
            messages.error(request, visible(str(error)))
            return self._back()
        said = _("%s is paused.") if paused else _("%s was already paused.")
        return self._done(request, said % visible(kind), did=paused)

    def resume_task_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: resume the task."""
        self._demand(request, "pause_queue")
        kind = request.GET.get("task", "")
        if request.method != "POST":
            said = _("Workers will claim messages of %s again.") % visible(kind)
            return self._ask(request, _("Resume"), _("Resume %s?") % visible(kind), said)
        resumed = resume_task(kind, self.store)
        said = _("%s is resumed.") if resumed else _("%s is not paused.")
        return self._done(request, said % visible(kind), did=resumed)

    # Workers

    def worker_view(self, request: HttpRequest) -> HttpResponse:
        """GET: ask for confirmation. POST: ask it of the worker, which reads it with its next heartbeat."""
        self._demand(request, "stop_worker")
        name, asked = request.GET.get("name", ""), request.GET.get("ask", "")
        workers = Worker.objects.using(self.store.alias)
        if asked not in SAID or not is_storable(name) or not workers.filter(name=name).exists():
            raise Http404("There is no such worker, or nothing of this kind to ask.")
        label = LABELS[asked]
        if request.method != "POST":
            title = _("%(label)s: worker %(name)s?") % {"label": label, "name": visible(name)}
            said = f"{SAID[asked]} {_('It is told within 10 s.')}"
            return self._ask(request, str(label), title, said, destructive=asked in {Request.STOP, Request.RESTART})
        did = ask(self.store, name, Request(asked) if asked else None, request.user.get_username())
        given = {"label": label, "name": visible(name)}
        said = _("%(label)s: worker %(name)s is told within 10 s.") if did else _("Worker %(name)s has ended.")
        return self._done(request, said % given, did=did)

    # All of them

    def _demand(self, request: HttpRequest, permission: str) -> None:
        self.demand_view(request)
        demand(request, permission)

    def _ask(
        self, request: HttpRequest, verb: str, title: str, said: str, *, destructive: bool = False
    ) -> HttpResponse:
        context = {"said": said, "verb": verb, "back": _list_url(), "is_destructive": destructive}
        return self.page(request, "confirm_one.html", title, context)

    def _done(self, request: HttpRequest, said: str, *, did: bool = True) -> HttpResponse:
        """Log it, if anything was done, and go back to the list."""
        if did:
            self.log_said(request, said)
        (messages.success if did else messages.info)(request, said)
        return self._back()

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(_list_url())


def worker_links(worker: Worker) -> list[tuple[str, str]]:
    """What a worker can be asked: labels and addresses."""
    url = reverse("admin:delayedq_pausedqueue_worker")
    asks = [""] if worker.asked else [request.value for request in Request]
    return [(str(LABELS[asked]), f"{url}?{urlencode({'name': worker.name, 'ask': asked})}") for asked in asks]


def _said_of(row: PausedTask, now: datetime) -> str:
    words = _("paused by %(name)s %(time)s") if row.paused_by else _("paused %(time)s")
    return words % {"name": visible(row.paused_by), "time": relative(row.paused_at, now)}


def _list_url() -> str:
    return reverse("admin:delayedq_pausedqueue_changelist")
