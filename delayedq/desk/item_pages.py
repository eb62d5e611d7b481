"""One item, and what is done with it. Each change is a POST that calls one verb; a refusal is shown at its field."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, PermissionsMixin
from django.db.models import Q
from django.forms.fields import InvalidJSONInput
from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import select_template
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from delayedq.core.serialization import loads
from delayedq.desk import assignment, ends, presence, replies, rules
from delayedq.desk import figures as counted
from delayedq.desk.display import call_of, history_of, name_of, state_at, text_of
from delayedq.desk.errors import DeskError, InvalidDecision
from delayedq.desk.frames import asked_queue, framed, go, link
from delayedq.desk.models import Comment, DeskQueue
from delayedq.desk.rules import active_users
from delayedq.desk.typed import typed_in
from delayedq.exceptions import CannotRun
from delayedq.store import store_for
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from django.http import HttpRequest

    from delayedq.desk.models import Item
    from delayedq.desk.options import Desk

# What the pages of the desk ask.


logger = logging.getLogger("delayedq")

#: At most this many people are offered to assign an item to.
OFFERED = 200


class ResultField(forms.JSONField):
    """Refuses also what is JSON, but which Python does not read: numbers of thousands of digits, extreme nesting."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError):
            raise forms.ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": value}
            ) from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return InvalidJSONInput(data)


class ResultForm(forms.Form):
    """The decision of a task that has no form of its own."""

    value = ResultField(label=gettext_lazy("Result"), help_text=gettext_lazy("As JSON."), required=False)

    def result(self) -> Any:
        return self.cleaned_data["value"]

    @staticmethod
    def from_result(result: Any) -> dict[str, Any]:
        return {"value": result}


def initial_of(form: Any, result: Any) -> dict[str, Any] | None:
    """What a new form begins with, where this was decided; None: nothing.

    The result of a form that makes it by its own `result()` is no data of it: its `from_result(result)` says what is.
    """
    try:
        given = form.from_result(result) if hasattr(form, "from_result") else result
    except Exception:
        logger.exception("%s.from_result has failed.", form.__name__)
        return None
    is_data = isinstance(given, Mapping) and (hasattr(form, "from_result") or not hasattr(form, "result"))
    return dict(given) if is_data else None


class PostponeForm(forms.Form):
    until = forms.DateTimeField(
        label=gettext_lazy("Follow-up date"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    why = forms.CharField(label=gettext_lazy("Why"), max_length=2_000, required=False)
    pause_clock = forms.BooleanField(
        label=gettext_lazy("Pause its clock"),
        help_text=gettext_lazy("It waits for somebody else: its due time moves on by as long as it is postponed."),
        required=False,
    )

    def __init__(self, *args: Any, has_clock: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["until"].help_text = timezone.get_current_timezone_name()
        if not has_clock:
            del self.fields["pause_clock"]


class SendBackForm(forms.Form):
    why = forms.CharField(label=gettext_lazy("What is wrong"), max_length=2_000)


class AssignForm(forms.Form):
    """Offers who may work on the queue; anybody who is active may be entered, and is refused with the reason."""

    user: Any = forms.ModelChoiceField(queryset=None, label=gettext_lazy("Assign to"))

    def __init__(self, *args: Any, queue: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["user"]
        field.queryset = active_users()
        offered = sorted((str(user), user.pk) for user in offered_for(queue)[:OFFERED])
        field.widget.choices = [("", "-"), *((pk, name) for name, pk in offered)]


def offered_for(queue: str) -> Any:
    """The active users who have the permission to take items of this queue, in one statement."""
    users: Any = active_users()
    if not issubclass(get_user_model(), PermissionsMixin):
        return users
    known = Permission.objects.filter(codename="take_item", content_type__app_label="delayedq_desk")
    users = users.filter(Q(is_superuser=True) | Q(user_permissions__in=known) | Q(groups__permissions__in=known))
    closed = DeskQueue.objects.filter(queue=queue, groups__isnull=False).values_list("groups", flat=True)
    if groups := list(closed):
        users = users.filter(Q(is_superuser=True) | Q(groups__in=groups))
    return users.distinct()


class CommentForm(forms.ModelForm):  # type: ignore[type-arg]  # Django does not know arguments
    class Meta:
        model = Comment
        fields = ("text", "attachment")
        labels = {"text": gettext_lazy("Comment"), "attachment": gettext_lazy("File")}  # noqa: RUF012 - as Django writes it
        widgets = {"text": forms.Textarea(attrs={"rows": 3})}  # noqa: RUF012

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if not given.get("text") and not given.get("attachment"):
            self.add_error("text", forms.ValidationError(gettext_lazy("Write something, or add a file.")))
        return given


# Item pages


#: Verbs that ask nothing.
PLAIN = {"take", "unassign", "approve", "renew"}

#: Where the reader goes next, and what they are told there; other verbs show the item again.
NEXT = {"finish": "mine", "unassign": "mine", "postpone": "mine", "approve": "review", "send_back": "review"}


@require_POST
def take_next(request: HttpRequest, site: Any = None) -> HttpResponse:  # noqa: ARG001 - of all pages
    """Give the user the next item of a queue."""
    return _next(request, asked_queue(request.POST))


@never_cache
@require_safe
def one(request: HttpRequest, pk: int, site: Any = None) -> HttpResponse:
    """One item: its arguments, the form, earlier decisions and comments."""
    return _page(request, site, _seen(request, pk))


@never_cache
@require_safe
def present(request: HttpRequest, pk: int, site: Any = None) -> HttpResponse:  # noqa: ARG001
    """Who else has the item open, as a part of its page: which asks for it again and again."""
    item = _seen(request, pk)
    now = store_for(item._state.db).now()  # noqa: SLF001
    others = presence.others(item, request.user, now) if item.is_open else []
    return render(request, "delayedq/desk/_present.html", {"others": others})


@never_cache
@require_safe
def attached(request: HttpRequest, pk: int, comment: int, site: Any = None) -> FileResponse:  # noqa: ARG001
    """The file of a comment, for who may see its item: it is saved and not shown, as people attach anything."""
    found = get_object_or_404(_seen(request, pk).comments.exclude(attachment=""), pk=comment)
    try:
        content = found.attachment.open()
    except FileNotFoundError as gone:
        raise Http404(str(gone)) from None
    name = Path(str(found.attachment.name)).name
    headers = {"X-Content-Type-Options": "nosniff"}
    return FileResponse(
        content, as_attachment=True, filename=name, content_type="application/octet-stream", headers=headers
    )


@require_POST
def act(request: HttpRequest, pk: int, verb: str, site: Any = None) -> HttpResponse:
    """Call one verb. What it refuses is shown, and nothing was changed."""
    item = _seen(request, pk)
    if verb == "finish" and replies.INSERT in request.POST:
        return _inserted(request, site, item)
    form = None if verb in PLAIN else _form(verb, item, request)
    if form is not None and not form.is_valid():
        return _page(request, site, item, status=422, **{verb: form})
    try:
        _do(request, item, verb, form)
    except DeskError as refused:
        if verb == "renew":
            return HttpResponse(str(refused), status=409, content_type="text/plain; charset=utf-8")
        if form is None:
            messages.error(request, str(refused))
            return go(request, "item", pk)
        _add(form, refused)
        return _page(request, site, _seen(request, pk), status=422, **{verb: form})
    return _done(request, item, verb)


def _inserted(request: HttpRequest, site: Any, item: Item) -> HttpResponse:
    """The page again, with what was typed and the template that was chosen; nothing is decided."""
    chosen = replies.ChooseForm(request.POST, kind=item.kind)
    form = replies.filled(_forms(item)["finish"], request, chosen)
    return _page(request, site, item, 200 if chosen.is_valid() else 422, chosen=chosen, finish=form)


def _done(request: HttpRequest, item: Item, verb: str) -> HttpResponse:
    if verb == "renew":
        return HttpResponse(status=204)
    texts = {
        "take": _("You hold it now."),
        "unassign": _("Given back: somebody else may take it."),
        "assign": _("Assigned to %(user)s.") % {"user": item.holder},
        "postpone": _("Postponed."),
        "finish": _("Decided. A colleague reviews it.") if item.state == "review" else _("Decided."),
        "approve": _("Approved."),
        "send_back": _("Sent back."),
        "comment": _("Your comment was added."),
    }
    messages.success(request, f"{name_of(item)}: {texts[verb]}")
    if request.POST.get("dq-then") == "next":
        return _next(request, item.queue)
    return go(request, NEXT[verb]) if verb in NEXT else go(request, "item", item.pk)


def _next(request: HttpRequest, queue: str) -> HttpResponse:
    try:
        item = assignment.take_next(request.user, queue)
    except DeskError as refused:
        messages.error(request, str(refused))
        return go(request, "mine")
    if item is None:
        messages.info(request, _("Nothing waits for you there."))
        return go(request, "mine")
    return go(request, "item", item.pk)


def _do(request: HttpRequest, item: Item, verb: str, form: Any) -> None:
    user: Any = request.user
    # Pages of the version before call it `assignment`: they are refused, rather than taken for others without a fence.
    is_fenced = verb == "assign" or "assignment" in request.POST
    seen = request.POST.get("dq-assignment", "" if is_fenced else None)
    if seen is not None:  # what the page has shown, not what is there now
        item.assignment = int(seen) if seen.isdecimal() and len(seen) < 19 else -1  # noqa: PLR2004 - what a row holds
    match verb:
        case "take" | "renew":
            getattr(item, verb)(user)
        case "unassign" | "approve":
            getattr(item, verb)(by=user)
        case "assign":
            item.assign(form.cleaned_data["user"], by=user)
        case "postpone":
            item.postpone(**form.cleaned_data, by=user)
        case "send_back":
            item.send_back(form.cleaned_data["why"], by=user)
        case "finish":
            item.finish(form, by=user)
        case "comment":
            item.comment(**form.cleaned_data, by=user)


def _form(verb: str, item: Item, request: HttpRequest) -> Any:
    forms = _forms(item)
    if verb not in forms:
        raise Http404
    own = {} if verb == "finish" else {"auto_id": f"{verb}_%s"}
    return forms[verb](request.POST, request.FILES, **own)


def _forms(item: Item) -> dict[str, Any]:
    """The classes of the forms, by verb."""
    return {
        "finish": _desk(item).form or ResultForm,
        "postpone": partial(PostponeForm, has_clock=item.due_at is not None),
        "send_back": SendBackForm,
        "assign": partial(AssignForm, queue=item.queue),
        "comment": CommentForm,
    }


def _add(form: Any, refused: DeskError) -> None:
    """Say it at the field that it is about."""
    errors = refused.errors if isinstance(refused, InvalidDecision) else {}
    for name in errors.keys() & form.fields.keys():
        form.add_error(name, errors[name])
    if not errors.keys() & form.fields.keys():
        form.add_error(refused.field if refused.field in form.fields else None, str(refused))


def _page(
    request: HttpRequest, site: Any, item: Item, status: int = 200, chosen: Any = None, **given: Any
) -> HttpResponse:
    now = store_for(item._state.db).now()  # noqa: SLF001
    call = call_of(item)
    holder = item.held_by(now)
    may = {verb: rules.may(request.user, verb, item.queue) for verb in ("take", "assign", "review")}
    reviewing = item.state == "review" and item.decided_by_id != request.user.pk and may["review"]
    assigning = item.is_open and item.state != "review" and may["assign"]
    offered = _offered(is_mine=holder == request.user.pk, reviewing=reviewing, assigning=assigning)
    forms = _filled(item, may) | given
    refused = next(iter(given), "")
    _focus(forms[refused or "finish"])
    context = {
        "title": name_of(item),
        "now": now,
        "item": item,
        "state": state_at(item, now),
        "is_late": item.is_open and item.due_at is not None and item.due_at <= now,
        "is_mine": holder == request.user.pk,
        "clock_left": item.clock_left(now),
        "others": presence.others(item, request.user, now) if item.is_open else [],
        "live_from": link(request, "present", item.pk),
        "page_url": link(request, "item", item.pk),
        "is_held": holder is not None,
        "renew_every": _renew_every(_desk(item)),
        "reviewing": reviewing,
        "assigning": assigning,
        "call": call,
        "ended": ends.ended(item) if item.state == "withdrawn" else "",
        "arguments": select_template([f"delayedq/desk/arguments/{item.kind}.html", "delayedq/desk/_arguments.html"]),
        "decision": _shown(item),
        "earlier": [(one, _shown(one)) for one in counted.earlier(item, rules.visible(request.user))],
        "history": history_of(item),
        "comments": item.comments.select_related("by").order_by("at"),
        "may": may,
        "forms": forms,
        "replies": (chosen or replies.offered(item.kind)) if holder == request.user.pk else None,
        "refused": refused,
        "error": _said(forms[refused]) if refused not in {"", *offered} else "",
        "typed": typed_in(forms[refused]) if refused not in {"", *offered} else [],
    }
    return framed(request, site, "item", context, status)


def _renew_every(desk: Desk) -> int:
    """Seconds between two renewals of a page: three in a hold, so that two may be lost, and one in 5 minutes."""
    return max(1, min(300, int(desk.hold.total_seconds() / 3)))


def _filled(item: Item, may: Mapping[str, bool]) -> dict[str, Any]:
    """New forms; what was decided, or what the handler says where people see that, is in that of the decision."""
    forms = _forms(item)
    if not may["assign"]:
        del forms["assign"]  # whom to offer would be asked for nothing
    value = _value(item.decision or (None if item.is_blind else item.proposal))
    finish = forms["finish"](initial=initial_of(forms["finish"], value))
    return {name: make(auto_id=f"{name}_%s") for name, make in forms.items() if name != "finish"} | {"finish": finish}


def _focus(form: Any) -> None:
    """Where the reader begins to type: at the first field that is refused, or else at the first one."""
    fields = [field for field in form if not field.is_hidden]
    if any("autofocus" in field.field.widget.attrs for field in fields):
        return
    for field in [one for one in fields if one.errors][:1] or fields[:1]:
        field.field.widget.attrs["autofocus"] = True


def _offered(*, is_mine: bool, reviewing: bool, assigning: bool) -> set[str]:
    """The verbs with a form on the page. What another one has refused, as the item has changed since, is said alone."""
    offered = {"finish": is_mine, "postpone": is_mine, "send_back": reviewing, "assign": assigning, "comment": True}
    return {verb for verb, is_offered in offered.items() if is_offered}


def _said(form: Any) -> str:
    """All that a form has refused, in one text."""
    return " ".join(str(text) for texts in form.errors.values() for text in texts)


def _shown(item: Item) -> Any:
    """The decision, field by field if it has any; None: there is none."""
    value = ends.shown_result(item.kind, item.decision)
    if isinstance(value, Mapping):
        fields: Any = getattr(_desk(item).form, "base_fields", {})
        return [(getattr(fields.get(name), "label", None) or name, text_of(part)) for name, part in value.items()]
    return None if item.decision is None else [("", text_of(value))]


def _seen(request: HttpRequest, pk: int) -> Item:
    opened = rules.visible(request.user).ever_opened()
    return get_object_or_404(opened.select_related("holder", "decided_by", "reviewed_by"), pk=pk)


def _desk(item: Item) -> Desk:
    try:
        return ends.desk_of(task_at(item.kind))
    except CannotRun as unknown:
        raise Http404(str(unknown)) from None


def _value(text: str | None) -> Any:
    try:
        return None if text is None else loads(text)
    except CannotRun:
        return text
