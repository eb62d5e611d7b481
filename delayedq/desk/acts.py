"""What is done on the lists of the desk: dealing items, assigning those that are ticked, and setting who decides.

Each is a POST. It goes back to the list as it was shown; what was refused is shown in it, with what was given.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import Http404
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from delayedq.desk import assignment, automation_page, rules, views
from delayedq.desk.errors import DeskError
from delayedq.desk.frames import asked_queue, go
from delayedq.desk.item_pages import OFFERED, AssignForm, offered_for
from delayedq.desk.options import Mode
from delayedq.models.operations import WHY_LENGTH

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

#: So many that were ticked are assigned at once: a page has no more. What a tick says: an item, and its assignment.
TICKED_AT_ONCE, TICKED = 50, re.compile(r"[0-9]{1,18}\.[0-9]{1,9}")


@require_POST
def deal(request: HttpRequest, site: Any = None) -> HttpResponse:  # noqa: ARG001 - of all pages
    """Assign what waits in a queue to those who work on it."""
    queue, way = asked_queue(request.POST), request.POST.get("deal", "")
    if not rules.may(request.user, "view", queue):
        raise Http404
    people = offered_for(queue)[:OFFERED]
    try:
        count = assignment.distribute(queue, people, way, by=request.user, most=views.DEALT_AT_ONCE)
    except (DeskError, ValueError) as refused:
        messages.error(request, str(refused))
    else:
        text = ngettext("%(count)s item was assigned.", "%(count)s items were assigned.", count)
        messages.success(request, text % {"count": count})
    return views.back_to_team(request)


@require_POST
def assign_ticked(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Assign the items of a queue that were ticked, each as the page has shown it, to one person.

    If any is refused, the page is shown again: what is still as it was seen is ticked.
    """
    queue = asked_queue(request.POST)
    if not all(rules.may(request.user, verb, queue) for verb in ("view", "assign")):
        raise Http404
    form = AssignForm(request.POST, queue=queue)
    ticked = [part.split(".", 1) for part in request.POST.getlist("items") if TICKED.fullmatch(part)]
    seen = {int(pk): int(number) for pk, number in ticked}
    if not form.is_valid() or not seen:
        messages.error(request, _("Tick items, and choose to whom they are assigned."))
        return views.team_page(request, site, 422, assigning=form)
    refused = _assign(request, queue, seen, form.cleaned_data["user"])
    return views.team_page(request, site, 422, assigning=form) if refused else views.back_to_team(request)


def _assign(request: HttpRequest, queue: str, seen: dict[int, int], user: Any) -> Counter[str]:
    """Assign the items, and tell how many were. Returns how many were refused, by reason."""
    count, refused = 0, Counter[str]()
    for item in rules.visible(request.user).filter(queue=queue, pk__in=list(seen)[:TICKED_AT_ONCE]).in_order():
        item.assignment = seen[item.pk]
        try:
            item.assign(user, by=request.user)
        except DeskError as error:
            refused[str(error)] += 1
        else:
            count += 1
    if count:
        text = ngettext("%(count)s item was assigned to %(user)s.", "%(count)s items were assigned to %(user)s.", count)
        messages.success(request, text % {"count": count, "user": user})
    for reason, number in refused.items():
        messages.error(request, _("Not assigned: %(number)s. %(why)s") % {"number": number, "why": reason})
    return refused


@require_POST
def set_mode(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Who decides the messages of a task from now on."""
    kind, mode = request.POST.get("kind", ""), request.POST.get("mode", "")
    why = request.POST.get("why", "").replace("\0", "").strip()[:WHY_LENGTH]
    try:
        automation_page.set_mode(request.user, kind, mode, why)
    except (DeskError, ValueError) as refused:
        messages.error(request, str(refused))
        return views.tasks_page(request, site, 422)
    word = automation_page.MEANINGS[Mode(mode)][0] if mode else _("as in the code")
    messages.success(request, _("From now on: %(mode)s.") % {"mode": word})
    return go(request, "automation")
