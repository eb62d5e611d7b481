"""The pages of the desk. Each change is a POST that calls one verb; what it refuses is shown at its field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from delayedq.core.serialization import load_call, loads
from delayedq.desk import closing, dealing, paging, rules
from delayedq.desk import figures as counted
from delayedq.desk.errors import DeskError
from delayedq.desk.forms import AssignForm, CommentForm, PostponeForm, SendBackForm
from delayedq.exceptions import CannotRun
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message
from delayedq.store import store_for
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from django.http import HttpRequest

    from delayedq.desk.declaring import Desk
    from delayedq.desk.models import Item

#: How many rows a page shows.
SHOWN = 50
FORMS: dict[str, Any] = {
    "postpone": PostponeForm,
    "send_back": SendBackForm,
    "assign": AssignForm,
    "comment": CommentForm,
}
PLAIN = {"take", "unassign", "approve", "renew"}


@login_required
@never_cache
@require_safe
def mine(request: HttpRequest) -> HttpResponse:
    """What the user holds, what waits for their review, and the queues from which they may take the next."""
    items: Any = rules.visible(request.user)
    queues = paging.queues_of(items.open())
    context = {
        "held": items.assigned(request.user).in_order()[:SHOWN],
        "reviews": items.in_review().exclude(decided_by=request.user)[:SHOWN],
        "queues": [
            queue for queue in queues if paging.has_unassigned(items, queue) and rules.may(request.user, "take", queue)
        ],
    }
    return render(request, "delayedq/desk/mine.html", context)


@login_required
@never_cache
@require_safe
def team(request: HttpRequest) -> HttpResponse:
    """What is open, and who holds it."""
    items: Any = rules.visible(request.user)
    queue = request.GET.get("queue", "")
    rows = items.open().select_related("holder")
    queues = [queue] if queue else list(paging.queues_of(items.open()))
    page = paging.page_of_queues(rows, queues, request.GET.get("after", ""), SHOWN)
    context = {
        "rows": page.rows,
        "after": page.after,
        "queue": queue,
        "now": store_for(items.db).now(),
    }
    return render(request, "delayedq/desk/team.html", context)


@login_required
@never_cache
@require_safe
def figures(request: HttpRequest) -> HttpResponse:
    """Throughput and age by queue, task and person."""
    items: Any = rules.visible(request.user)
    now = store_for(items.db).now()
    context = {
        "queues": counted.by_queue(items, now),
        "tasks": counted.by_task(items, now),
        "people": counted.by_person(items, now),
    }
    return render(request, "delayedq/desk/figures.html", context)


@login_required
@require_POST
def take_next(request: HttpRequest) -> HttpResponse:
    """Give the user the next item of a queue."""
    try:
        item = dealing.take_next(request.user, request.POST.get("queue", ""))
    except DeskError as refused:
        messages.error(request, str(refused))
        return redirect("delayedq_desk:mine")
    if item is None:
        messages.info(request, _("Nothing waits for you there."))
        return redirect("delayedq_desk:mine")
    return redirect("delayedq_desk:item", item.pk)


@login_required
@never_cache
@require_safe
def one(request: HttpRequest, pk: int) -> HttpResponse:
    """One item: its arguments, the form, earlier decisions and comments."""
    return _page(request, _seen(request, pk))


@login_required
@require_POST
def act(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    """Call one verb. What it refuses is shown, and nothing was changed."""
    item = _seen(request, pk)
    form = None if verb in PLAIN else _form(verb, item, request)
    if form is not None and not form.is_valid():
        return _page(request, item, **{verb: form}, status=422)
    try:
        _do(request, item, verb, form)
    except DeskError as refused:
        if form is not None:
            form.add_error(refused.field if refused.field in form.fields else None, str(refused))
            return _page(request, item, **{verb: form}, status=422)
        messages.error(request, str(refused))
        return redirect("delayedq_desk:item", pk)
    if verb == "renew":
        return HttpResponse(status=204)
    if verb in {"finish", "approve", "send_back"}:
        return redirect("delayedq_desk:mine")
    return redirect("delayedq_desk:item", pk)


def _do(request: HttpRequest, item: Item, verb: str, form: Any) -> None:
    user: Any = request.user
    match verb:
        case "take" | "renew":
            getattr(item, verb)(user)
        case "unassign" | "approve":
            getattr(item, verb)(by=user)
        case "assign":
            # The holder that the page has shown, not the one of now.
            seen = request.POST.get("assignment", "")
            item.assignment = int(seen) if seen.isdecimal() else -1
            item.assign(form.cleaned_data["user"], by=user)
        case "postpone":
            item.postpone(form.cleaned_data["until"], form.cleaned_data["why"], by=user)
        case "send_back":
            item.send_back(form.cleaned_data["why"], by=user)
        case "finish":
            item.finish(closing.result_of(form), by=user)
        case "comment":
            item.comments.create(by=user, at=store_for(item._state.db).now(), **form.cleaned_data)  # noqa: SLF001


def _form(verb: str, item: Item, request: HttpRequest) -> Any:
    if verb == "finish":
        form = _desk(item).form
        if form is None:
            raise Http404
        return form(request.POST)
    if verb not in FORMS:
        raise Http404
    return FORMS[verb](request.POST, request.FILES)


def _page(request: HttpRequest, item: Item, status: int = 200, **given: Any) -> HttpResponse:
    now = store_for(item._state.db).now()  # noqa: SLF001
    form = _desk(item).form
    initial = _value(item.decision or (None if item.is_blind else item.proposal))
    forms: dict[str, Any] = {name: make() for name, make in FORMS.items()}
    if form is not None:
        forms["finish"] = form(initial=dict(initial) if isinstance(initial, Mapping) else None)
    context = {
        "item": item,
        "is_mine": item.held_by(now) == request.user.pk,
        "is_held": item.held_by(now) is not None,
        "is_review": item.state == "review" and item.decided_by_id != request.user.pk,
        "arguments": _arguments(item),
        "decision": closing.shown_result(item.kind, item.decision),
        "earlier": [(one, closing.shown_result(one.kind, one.decision)) for one in counted.earlier(item)],
        "comments": item.comments.select_related("by").order_by("at"),
        "may": {verb: rules.may(request.user, verb, item.queue) for verb in ("take", "assign", "review")},
        "forms": forms | given,
    }
    return render(request, "delayedq/desk/item.html", context, status=status)


def _seen(request: HttpRequest, pk: int) -> Item:
    return get_object_or_404(rules.visible(request.user).select_related("holder", "decided_by"), pk=pk)


def _desk(item: Item) -> Desk:
    try:
        return closing.desk_of(task_at(item.kind))
    except CannotRun as unknown:
        raise Http404(str(unknown)) from None


def _arguments(item: Item) -> list[tuple[str, Any]]:
    row: Any = Message.objects.filter(pk=item.message_id).first()
    row = row or FinishedMessage.objects.filter(pk=item.message_id).first()
    try:
        args, kwargs = load_call("{}" if row is None else shown(row).payload)
    except CannotRun as error:
        return [(_("The arguments can't be read"), error)]
    return [(str(number), value) for number, value in enumerate(args, 1)] + list(kwargs.items())


def _value(text: str | None) -> Any:
    try:
        return None if text is None else loads(text)
    except CannotRun:
        return text
