"""The lists and figures of the desk. `acting.py` has what is done with an item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from delayedq.desk import automating, paging, rules
from delayedq.desk import figures as counted
from delayedq.desk.framing import framed
from delayedq.desk.showing import rows_of
from delayedq.store import store_for

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

#: How many rows a page shows.
SHOWN = 50
#: What the team desk can be narrowed to.
FILTERS = ("unassigned", "assigned", "postponed", "in_review", "late")


@never_cache
@require_safe
def mine(request: HttpRequest, site: Any = None) -> HttpResponse:
    """What the user holds, what waits for their review, and the queues from which they may take the next."""
    user: Any = request.user
    items: Any = rules.visible(user)
    now = store_for(items.db).now()
    held = items.assigned(user).in_order().select_related("holder")
    context = {
        "title": _("My desk"),
        "now": now,
        "held": rows_of(held[:SHOWN], now),
        "to_review": counted.bounded(_reviews(user, items)) if user.has_perm("delayedq_desk.review_item") else 0,
        "queues": _waiting(user, items),
    }
    return framed(request, site, "mine", context)


@never_cache
@require_safe
def team(request: HttpRequest, site: Any = None) -> HttpResponse:
    """What is open, and who holds it."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    queue, only = request.GET.get("queue", ""), request.GET.get("only", "")
    chosen = getattr(items.open(), only)() if only in FILTERS else items.open()
    names = list(paging.queues_of(items.open()))
    page = paging.page_of_queues(
        chosen.select_related("holder"), [queue] if queue else names, request.GET.get("after", ""), SHOWN
    )
    context = {
        "title": _("Team desk"),
        "now": now,
        "rows": rows_of(page.rows, now),
        "after": page.after,
        "queue": queue,
        "only": only,
        "queues": names,
        "filters": {
            "": _("all"),
            "unassigned": _("unassigned"),
            "assigned": _("assigned"),
            "postponed": _("postponed"),
            "in_review": _("pending review"),
            "late": _("late"),
        },
    }
    return framed(request, site, "team", context)


@never_cache
@require_safe
def review(request: HttpRequest, site: Any = None) -> HttpResponse:
    """The decisions that wait for the user's review."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    found = rows_of(_reviews(request.user, items).select_related("decided_by")[:SHOWN], now)
    may = [row for row in found if rules.may(request.user, "review", row.item.queue)]
    return framed(request, site, "review", {"title": _("Review"), "now": now, "rows": may})


@never_cache
@require_safe
def figures(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Throughput and age by queue, task and person."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    context = {
        "title": _("Figures of the last 7 days"),
        "now": now,
        "queues": counted.by_queue(items, now),
        "tasks": counted.by_task(items, now),
        "people": counted.by_person(items, now),
    }
    return framed(request, site, "figures", context)


@never_cache
@require_safe
def automation(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Who decides the messages of each task, how well the handler does, and how that has changed."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    context = {
        "title": _("Automation"),
        "now": now,
        "tasks": automating.tasks_of(request.user, items, now),
        "may_set": automating.may_set(request.user),
    }
    return framed(request, site, "automation", context)


def _waiting(user: Any, items: Any) -> list[dict[str, Any]]:
    """The queues from which the user may take the next item, and how many wait there, as far as they are counted."""
    skills = rules.skills_of(user)
    return [
        {"queue": queue, "waiting": counted.waiting(items, queue, skills)}
        for queue in paging.queues_of(items.open())
        if rules.may(user, "take", queue) and paging.has_unassigned(items, queue)
    ]


def _reviews(user: Any, items: Any) -> Any:
    """Decisions of others; those that nobody is named for are the handler's."""
    return items.in_review().exclude(decided_by=user)
