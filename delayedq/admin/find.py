"""The search box of every page: to the one message, task, schedule or flow that is meant, or a list of those found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from delayedq.admin.base import ReadOnlyAdmin, may
from delayedq.admin.marks import url_of_task
from delayedq.operations.search import MOST, Hit, Thing, hits, single
from delayedq.operations.wording import visible

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

#: A reader needs one of these to see the page of a task, of which each part asks for its own permission.
OF_TASKS = (
    "view_dashboard",
    "view_message",
    "view_finishedmessage",
    "view_cronschedule",
    "view_flow",
    "view_pausedqueue",
)

WORDS = {
    Thing.MESSAGE: pgettext_lazy("what was found", "message"),
    Thing.ENDED: pgettext_lazy("what was found", "ended message"),
    Thing.TASK: pgettext_lazy("what was found", "task"),
    Thing.SCHEDULE: pgettext_lazy("what was found", "schedule"),
    Thing.FLOW: pgettext_lazy("what was found", "flow"),
}


class FoundRow(NamedTuple):
    """`kind`: the task of a message."""

    what: str
    name: str
    number: str
    kind: str
    url: str


def things_of(request: HttpRequest) -> list[Thing]:
    """What the user may find: what they may view."""
    return [thing for thing in Thing if _may_find(request, thing)]


def _may_find(request: HttpRequest, thing: Thing) -> bool:
    return may_see_tasks(request) if thing is Thing.TASK else may(request, f"view_{thing}")


def may_see_tasks(request: HttpRequest) -> bool:
    return any(may(request, permission) for permission in OF_TASKS)


def _url(hit: Hit) -> str:
    if hit.thing is Thing.TASK:
        return url_of_task(hit.name)
    if hit.thing is Thing.SCHEDULE:
        return f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': hit.name})}"
    return reverse(f"admin:delayedq_{hit.thing}_change", args=[hit.id])


def _row(hit: Hit) -> FoundRow:
    number = "" if hit.id is None else f"#{hit.id}"
    return FoundRow(str(WORDS[hit.thing]), visible(hit.name), number, visible(hit.kind), _url(hit))


class FindPages(ReadOnlyAdmin):
    """A part of the admin of the dashboard."""

    def find_view(self, request: HttpRequest) -> HttpResponse:
        """`?q=`: goes to what is meant, if that is one; else lists what was found, of what the user may view."""
        things, text = things_of(request), request.GET.get("q", "").strip()
        if not things:
            raise PermissionDenied
        found = hits(self.store, text, things)
        if (meant := single(found)) is not None:
            return HttpResponseRedirect(_url(meant))
        context: dict[str, Any] = {
            "text": visible(text),
            "searched_for": text,
            "rows": [_row(hit) for hit in found],
            "most": MOST,
            "in_messages": Thing.MESSAGE in things,
            "in_history": Thing.ENDED in things,
        }
        return self.rendered(request, "find.html", _("Search"), context)
