"""The lists and figures of the desk. `item_pages.py` has what is done with an item, `acts.py` what is done on these.

What a page reads does not grow with what is open: a list is a page of it, and a count stops at a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from delayedq.desk import automation_page, open_items, rules
from delayedq.desk import figures as counted
from delayedq.desk.display import rows_of
from delayedq.desk.frames import asked_queue, asked_text, framed, link
from delayedq.desk.item_pages import AssignForm
from delayedq.desk.models import SavedView, State
from delayedq.models.operations import WHY_LENGTH
from delayedq.operations.counting import Count, bounded_rows
from delayedq.store import store_for

if TYPE_CHECKING:
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse, QueryDict

#: How many rows a page shows.
SHOWN = 50
#: Up to which number the items of a queue are counted.
COUNTED = 1_000
#: How many items one button deals.
DEALT_AT_ONCE = 50
#: How many views a user may save.
MOST_VIEWS = 50
#: What the team desk filters by, besides queues: `open_items.of_filter` has what each selects.
FILTERS = {
    "": gettext_lazy("all"),
    "unassigned": gettext_lazy("unassigned"),
    "assigned": gettext_lazy("assigned"),
    "postponed": gettext_lazy("postponed"),
    "in_review": gettext_lazy("pending review"),
    "late": gettext_lazy("late"),
}


class TeamFilters(NamedTuple):
    """What the team desk shows: of a queue, of a state, of a search; empty texts for all."""

    queue: str = ""
    only: str = ""
    text: str = ""

    @property
    def asked(self) -> dict[str, str]:
        """As a query string has it."""
        return {name: value for name, value in zip(("queue", "only", "q"), self, strict=True) if value}


def filters_in(given: QueryDict) -> TeamFilters:
    """Those that a request names; what no filter is, is none."""
    only = given.get("only", "")
    return TeamFilters(asked_queue(given), only if only in FILTERS else "", asked_text(given))


class OpenQueue(NamedTuple):
    """What the user may take of a queue. `due`: when the next one is."""

    queue: str
    number: Count
    due: datetime | None


@never_cache
@require_safe
def mine(request: HttpRequest, site: Any = None) -> HttpResponse:
    """What the user holds, what waits for their review, and the queues from which they may take the next."""
    user: Any = request.user
    items: Any = rules.visible(user)
    now = store_for(items.db).now()
    held = open_items.page(items.assigned(user).select_related("holder"), request.GET.get("after", ""), SHOWN)
    context = {
        "title": _("My desk"),
        "now": now,
        "held": rows_of(held.rows, now),
        "after": held.after,
        "to_review": _to_review(user, items) if user.has_perm("delayedq_desk.review_item") else None,
        "queues": _waiting(user, items),
    }
    return framed(request, site, "mine", context)


def _to_review(user: Any, items: Any) -> Count:
    pending = _pending(user, items)
    return Count(len(pending.rows), exact=True if pending.after is None else None)


def _pending(user: Any, items: Any, after: str = "") -> open_items.ItemPage:
    """A page of the decisions of others that the user may review."""
    rows = items.filter(state=State.REVIEW).exclude(decided_by=user).select_related("decided_by")
    queues = [queue for queue in open_items.queues_of(rows) if rules.may(user, "review", queue)]
    return open_items.page_of_queues(rows, queues, after, SHOWN)


def _waiting(user: Any, items: Any) -> list[OpenQueue]:
    waiting, skills = [], rules.skills_of(user)
    for queue in open_items.queues_of(items.open()):
        heads = open_items.heads_of_unassigned(items, queue, skills, SHOWN)
        if heads and rules.may(user, "take", queue):
            number = Count(len(heads), exact=True if len(heads) < SHOWN else None)
            waiting.append(OpenQueue(queue, number, heads[0].due_at))
    return waiting


@never_cache
@require_safe
def team(request: HttpRequest, site: Any = None) -> HttpResponse:
    """What is open, and who holds it."""
    return team_page(request, site)


def team_page(
    request: HttpRequest, site: Any, status: int = 200, saving: Any = None, assigning: Any = None
) -> HttpResponse:
    """The team desk with the filters that the request names. `saving`, `assigning`: a form of it that was refused."""
    given = request.POST if request.method == "POST" else request.GET
    filters, begin = filters_in(given), given.get("after", "")
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    queue, only, text = filters
    queues = {name: bounded_rows(_open(items, name), COUNTED) for name in open_items.queues_of(items.open())}
    chosen = items.select_related("holder")
    names = [queue] if queue else list(queues)
    if text:
        page = open_items.found(chosen.filter(queue=queue) if queue else chosen, only, names, text, SHOWN)
    else:
        page = open_items.page_of_filter(chosen, only, names, begin, SHOWN)
        if begin and not page.rows:  # all of the last page was dealt with
            page, begin = open_items.page_of_filter(chosen, only, names, "", SHOWN), ""
    may_see = request.user.has_perm("delayedq_desk.view_item")
    may_deal = bool(queue) and may_see and rules.may(request.user, "assign", queue)  # the groups are the same for both
    shown = _address(request, filters, begin)
    context = {
        "title": _("Team desk"),
        "now": now,
        "rows": rows_of(page.rows, now),
        "begin": begin,
        "after": page.after,
        "is_cut": page.is_cut,
        "queue": queue,
        "only": only,
        "only_label": FILTERS[only],
        "queues": queues,
        "text": text,
        "searched": open_items.SEARCHED,
        "may_deal": may_deal,
        "to_whom": (assigning or AssignForm(queue=queue)) if may_deal and page.rows else None,
        "ticked": given.getlist("items") if assigning else [],
        "dealt_at_once": DEALT_AT_ONCE,
        "filters": FILTERS,
        "views": _views_of(request.user, filters),
        "may_save": may_see,
        "saving": saving,
        "live_from": shown,
        "page_url": shown,
    }
    return framed(request, site, "team", context, status)


def back_to_team(request: HttpRequest) -> HttpResponse:
    """To the page of the team desk from which something was sent."""
    return HttpResponseRedirect(_address(request, filters_in(request.POST), request.POST.get("after", "")))


def _address(request: HttpRequest, filters: TeamFilters, after: str) -> str:
    asked = filters.asked | ({"after": after} if after else {})
    return f"{link(request, 'team')}?{urlencode(asked)}"


def _views_of(user: Any, shown: TeamFilters) -> list[tuple[SavedView, str, bool]]:
    """The user's views: each with its query string, and whether it is what is shown."""
    found = SavedView.objects.filter(user=user).order_by("name", "pk")[:MOST_VIEWS]
    kept = ((view, TeamFilters(view.queue, view.only, view.text)) for view in found)
    return [(view, urlencode(filters.asked), filters == shown) for view, filters in kept]


def _open(items: Any, queue: str) -> Any:
    return items.open().filter(queue=queue).order_by()


@never_cache
@require_safe
def review(request: HttpRequest, site: Any = None) -> HttpResponse:
    """The decisions of others that wait for the user's review; those that nobody is named for are the handler's."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    page = _pending(request.user, items, request.GET.get("after", ""))
    context = {"title": _("Review"), "now": now, "rows": rows_of(page.rows, now), "after": page.after}
    return framed(request, site, "review", context)


@never_cache
@require_safe
def figures(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Throughput and age by queue, task and person."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    decided = counted.decided(items, now)
    context = {
        "title": _("Figures of the last 7 days"),
        "now": now,
        "queues": counted.by_queue(items, now, decided),
        "tasks": counted.by_task(items, now, decided),
        "people": counted.by_person(items, now, decided),
    }
    return framed(request, site, "figures", context)


@never_cache
@require_safe
def automation(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Who decides the messages of each task, how well the handler does, and how that has changed."""
    return tasks_page(request, site)


def tasks_page(request: HttpRequest, site: Any, status: int = 200) -> HttpResponse:
    """The page of automation; of a change that was refused it keeps the reason that was given."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    context = {
        "title": _("Automation"),
        "now": now,
        "tasks": automation_page.tasks_of(request.user, items, now),
        "days": automation_page.days(now),
        "may_set": automation_page.may_set(request.user),
        "given": {name: request.POST.get(name, "") for name in ("kind", "why")},
        "why_length": WHY_LENGTH,
    }
    return framed(request, site, "automation", context, status)
