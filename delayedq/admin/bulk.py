"""Bulk actions: choose messages in a list, confirm, then edit them in parts, one request each, until all are done.

The choice and the time at which the list was shown are carried from the list to the confirmation and each request as
a signed text, so exactly what was confirmed is done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django.contrib import messages
from django.core import signing
from django.core.exceptions import ValidationError
from django.http import HttpResponseRedirect, QueryDict
from django.middleware.csrf import get_token
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.ask import who_and_why
from delayedq.admin.base import ReadOnlyAdmin, demand, may
from delayedq.admin.lists import paging
from delayedq.admin.moments import when
from delayedq.models import Edit
from delayedq.operations.browsing import id_in, key_position_in, newest_id, position_in, position_text
from delayedq.operations.bulk import BulkEdit, becoming, carry_out_part, described, summary
from delayedq.operations.edits import begin
from delayedq.operations.wording import visible
from delayedq.store.operator import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.functional import _StrOrPromise as StrOrPromise
    from django.utils.safestring import SafeString

    from delayedq.admin.changes import Action, ActionForm
    from delayedq.admin.filters import FilterForm
    from delayedq.core.edits import LanePosition
    from delayedq.operations.browsing import EndedSelection, Page, Selection
    from delayedq.operations.bulk import Preview
    from delayedq.operations.counting import Count

# What a change makes of messages, before it is made: the old values of a sample beside the new ones.


class Comparison(NamedTuple):
    """The time, queue or priority of one message; `after` is "" if it stays."""

    before: SafeString | str
    after: SafeString | str


def comparisons(form: ActionForm, places: Sequence[LanePosition], now: datetime) -> list[Comparison]:
    """One for each place; none if the form has no valid values yet, or does not change the place of messages."""
    tried = form if form.is_bound else type(form)(_shown(form))
    change = tried.change(now) if tried.is_valid() else None
    if change is None:
        return []
    becomes = becoming(change, places, now)
    return [compared(before, after, now) for before, after in zip(places, becomes, strict=True)]


def _shown(form: ActionForm) -> dict[str, object]:
    """The values that an unbound form shows, as if it was sent so."""
    return {name: form[name].value() for name in form.fields}


def compared(before: LanePosition, after: LanePosition, now: datetime) -> Comparison:
    if before.queue != after.queue:
        return Comparison(visible(before.queue), visible(after.queue))
    if before.priority != after.priority:
        return Comparison(str(before.priority), str(after.priority))
    is_same = before.scheduled_at == after.scheduled_at
    return Comparison(when(before.scheduled_at, now), "" if is_same else when(after.scheduled_at, now))


# Bulk


SALT = "delayedq.admin.bulk"

#: A signed choice is good for its own user, and so long.
GOOD_FOR = timedelta(days=1)

#: At most this many messages can be ticked one by one.
MOST_TICKED = 1_000


@dataclass(frozen=True, slots=True)
class BulkChoice:
    """What was chosen in a list.

    `ids`: the ticked messages; None: all that match `query` and have an id up to `upto`. `as_of`: when the list was
    shown. `most`: at how many changed messages the edit stops, as the confirmation of all that match said; else None.
    """

    ids: list[int] | None
    query: str
    upto: int
    as_of: datetime
    most: int | None = None
    #: The page on which it was chosen, to which the user returns.
    back: str = ""

    def signed(self, user: object) -> str:
        """For the user with this primary key."""
        values = {**asdict(self), "as_of": self.as_of.isoformat()}
        return signing.dumps(values, salt=f"{SALT}.{user}")

    @classmethod
    def of(cls, signed: str, user: object) -> Self:
        """The choice in a signed text of this user's. Raises BadSignature, and SignatureExpired, which is one."""
        values = signing.loads(signed, salt=f"{SALT}.{user}", max_age=GOOD_FOR)
        return cls(**{**values, "as_of": datetime.fromisoformat(values["as_of"])})

    @property
    def asked(self) -> QueryDict:
        return QueryDict(self.query)


@dataclass(slots=True)
class Ongoing:
    """An edit in progress: its id, the position to continue after, and how many were skipped, by reason."""

    edit: int | None = None
    after: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def signed(self, action: str, chosen: str) -> str:
        """It continues this action on this choice (a signed one), and no other."""
        return signing.dumps([self.edit, self.after, self.skipped], salt=f"{SALT}.{action}.{chosen}")

    @classmethod
    def of(cls, signed: str, action: str, chosen: str) -> Self:
        """Raises BadSignature."""
        return cls(*signing.loads(signed, salt=f"{SALT}.{action}.{chosen}"))


class BulkAdmin(ReadOnlyAdmin):
    bulk_actions: dict[str, Action]

    @abstractmethod
    def filter_of(self, query: QueryDict) -> FilterForm:
        """The filter of the list that an address stands for."""

    @abstractmethod
    def which(self, chosen: BulkChoice) -> Sequence[int] | Selection | EndedSelection:
        """The ids of what was ticked, or what the filter selects. Raises ValidationError."""

    @abstractmethod
    def preview(self, action: Action, chosen: BulkChoice) -> Preview:
        """With rows as the list has them."""

    def offered_actions(self, request: HttpRequest) -> list[Action]:
        return [action for action in self.bulk_actions.values() if may(request, action.permission)]

    def paging(self, request: HttpRequest, page: Page[Any], count: Count | None, now: datetime) -> dict[str, Any]:
        """The context of a list for its count, its links to other pages, and its actions."""
        reached = when(page.after.at, now) if page.is_cut and isinstance(page.after, Position) else ""
        text = request.GET.get("after", "")
        return {
            **paging(request, page.after and position_text(page.after), reached=reached),
            "is_first": (position_in(text) or key_position_in(text)) is None,
            "count": count,
            "actions": self.offered_actions(request),
            "may_export": may(request, "export_message"),
        }

    def get_urls(self) -> list[URLPattern]:
        name = f"delayedq_{self.opts.model_name}_act"
        return [path("act/", self.admin_site.admin_view(self.act_view), name=name), *super().get_urls()]

    @property
    def list_url(self) -> str:
        return reverse(f"admin:delayedq_{self.opts.model_name}_changelist")

    def act_view(self, request: HttpRequest) -> HttpResponse:
        """POST from the list: ask for confirmation. POST from the confirmation: do one part."""
        self.demand_view(request)
        action = self.bulk_actions.get(request.POST.get("action", ""))
        if action is None:
            return self._back(request, _("Choose an action first."))
        demand(request, action.permission)
        try:
            chosen = self._chosen(request)
        except (signing.BadSignature, ValueError) as error:
            return self._back(request, EXPIRED if isinstance(error, signing.SignatureExpired) else UNREADABLE)
        demand_filter(request, chosen.asked)
        if chosen.ids == []:
            return self._back(request, _("Tick messages first."))
        # All that match are confirmed with the bound that the confirmation said.
        is_confirmed = "confirmed" in request.POST and (chosen.ids is not None or "chosen" in request.POST)
        form = action.form(request.POST) if is_confirmed else None
        try:
            if form is not None and form.is_valid() and "preview" not in request.POST:
                return self._do(request, action, form, chosen)
            return self._confirm(request, action, form, chosen)
        except ValidationError as invalid:
            return self._back(
                request, _("Nothing was chosen, for the filter is not valid: %s") % " ".join(invalid.messages)
            )

    def _chosen(self, request: HttpRequest) -> BulkChoice:
        if signed := request.POST.get("chosen"):
            return BulkChoice.of(signed, request.user.pk)
        everything = "everything" in request.POST
        ids = None if everything else _ids(request.POST.getlist("ids")[:MOST_TICKED])
        query = request.POST.get("query", "")
        upto = newest_id(self.store.alias) if everything else 0
        return BulkChoice(ids, query, upto, self.store.now(), back=self._return_to(request))

    def _return_to(self, request: HttpRequest) -> str:
        """The page that the form names, if it is one of this site; else the list."""
        back = request.POST.get("back", "")
        is_ours = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
        return back if is_ours else f"{self.list_url}?{request.POST.get('query', '')}"

    def _back(self, request: HttpRequest, warning: StrOrPromise) -> HttpResponse:
        messages.warning(request, warning)
        return HttpResponseRedirect(self.list_url)

    def _confirm(
        self, request: HttpRequest, action: Action, form: ActionForm | None, chosen: BulkChoice
    ) -> HttpResponse:
        """With what each message of a sample becomes: by what was entered, or by what the form shows at first."""
        preview = self.preview(action, chosen)
        form = form or action.form(initial={**_present(action, preview.rows), **request.POST.dict()})
        unlimited = chosen.ids is not None or chosen.most is not None
        confirmed = chosen if unlimited else replace(chosen, most=preview.changing.most)
        context = {
            "action": action,
            "form": form,
            "chosen": confirmed.signed(request.user.pk),
            "preview": preview,
            "becomes": comparisons(form, [row.place for row in preview.rows], chosen.as_of),
            "most": None if preview.changing.exact else confirmed.most,
            "conditions": self.filter_of(chosen.asked).said if chosen.ids is None else [],
            "back": chosen.back,
        }
        return self.page(request, "confirm.html", f"{action.label}?", context, query=chosen.query)

    # Carrying it out

    def _do(self, request: HttpRequest, action: Action, form: ActionForm, chosen: BulkChoice) -> HttpResponse:
        try:
            ongoing = self._ongoing(request, action)
            said = described(action.does, form.change(chosen.as_of), chosen.as_of)
            edit = self._edit(request, action, said, ongoing.edit)
        except (signing.BadSignature, Edit.DoesNotExist):
            return self._back(request, UNREADABLE)
        change = form.change(chosen.as_of)
        bulk = BulkEdit(action.does, self.which(chosen), chosen.as_of, chosen.upto, chosen.most, change)
        progress = carry_out_part(self.store, edit, bulk, ongoing.after)
        skipped = Counter(ongoing.skipped) + progress.skipped
        if progress.after is not None:
            carry_on = Ongoing(edit.pk, progress.after, dict(skipped)).signed(action.name, request.POST["chosen"])
            given = [(name, value) for name, value in request.POST.items() if name not in _OWN_FIELDS]
            context = {"action": action, "edit": edit, "given": given, "ongoing": carry_on}
            return self.page(request, "ongoing.html", f"{action.label}…", context)
        self.log_change(request, edit, f"{said}: {summary(edit.changed, skipped)}")
        messages.success(request, _success(request, action, edit, skipped))
        return HttpResponseRedirect(chosen.back or f"{self.list_url}?{chosen.query}")

    def _ongoing(self, request: HttpRequest, action: Action) -> Ongoing:
        """Where to continue; the beginning, if the request is the first. Raises BadSignature."""
        given = request.POST
        if "ongoing" not in given:
            return Ongoing()
        return Ongoing.of(given["ongoing"], action.name, given.get("chosen", ""))

    def _edit(self, request: HttpRequest, action: Action, said: str, known: int | None) -> Edit:
        if known is not None:
            return Edit.objects.using(self.store.alias).get(pk=known)
        return begin(self.store, action.does, said, *who_and_why(request))


def demand_filter(request: HttpRequest, query: QueryDict) -> None:
    """Raise PermissionDenied for a filter by what errors say, if the user may not see that."""
    if query.get("error"):
        demand(request, "view_payload")


UNREADABLE = gettext_lazy("The selection could not be read, or is another user's. Choose again.")
EXPIRED = gettext_lazy("The selection is older than a day. Choose again.")

_OWN_FIELDS = {"csrfmiddlewaretoken", "ongoing"}


def _present(action: Action, rows: list[Any]) -> dict[str, Any]:
    """The values of the first of the messages, which an input shows at first."""
    return action.form.present(rows[0].place) if rows else {}


def _ids(texts: Sequence[str]) -> list[int]:
    """Raises ValueError for what can't be an id."""
    ids = [id_ for id_ in map(id_in, texts) if id_ is not None]
    if len(ids) < len(texts):
        raise ValueError("This is not an id.")
    return ids


def _success(request: HttpRequest, action: Action, edit: Edit, skipped: Counter[str]) -> str:
    """What was done, with a button that undoes it at once: who has just done it needs no preview of what was before."""
    said = f"{action.label}: {summary(edit.changed, skipped)}."
    if not edit.changed:
        return said
    form = (
        '{} <form method="post" action="{}" class="dq-undo">'
        '<input type="hidden" name="csrfmiddlewaretoken" value="{}"><button type="submit">{}</button></form>'
    )
    undo = reverse("admin:delayedq_edit_undo", args=[edit.pk])
    return format_html(form, said, undo, get_token(request), _("Undo"))
