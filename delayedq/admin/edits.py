"""Bulk edits: a list of them, a page for each, and undo."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core import signing
from django.db.models import Q
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from delayedq.admin.base import ReadOnlyAdmin, cut, demand, may
from delayedq.admin.bulk import SALT
from delayedq.admin.changes import TO_UNDO
from delayedq.admin.choices import WithSuggestions
from delayedq.admin.filters import ListFilter
from delayedq.admin.lists import PER_PAGE, chips_of, paging
from delayedq.admin.moments import Moment, Until
from delayedq.core.bounds import NAME_LENGTH
from delayedq.core.masking import MASK
from delayedq.core.serialization import stored_json
from delayedq.cron.operator import SCHEDULE
from delayedq.masking import hidden, masking_of
from delayedq.models import Edit, EditedMessage, FinishedMessage, Message
from delayedq.operations.browsing import id_in
from delayedq.operations.bulk import SAMPLE, summary
from delayedq.operations.dead_letters import DISCARD
from delayedq.operations.edits import CANCEL, PAUSE, RESCHEDULE, RETRY
from delayedq.operations.sending import ARGUMENTS, SEND, by_name
from delayedq.operations.undo import can_undo, undo
from delayedq.operations.wording import exact, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from delayedq.store.base import Store

# What an edit changed: the values before and after that differ, with times in the current time zone.


#: At most this many characters of a value are shown.
VALUE_LENGTH = 500

#: What records call what the pages call so.
NAMES = {
    "scheduled_at": pgettext_lazy("state", "due"),
    "queue": gettext_lazy("Queue"),
    "priority": gettext_lazy("Priority"),
    "outcome": gettext_lazy("Outcome"),
    "attempt": gettext_lazy("Attempt"),
    "paused": pgettext_lazy("state", "paused"),
}

#: Of other edits, the number of changes is not one of messages.
OF_MESSAGES = frozenset({RESCHEDULE, CANCEL, RETRY, ARGUMENTS, DISCARD, SEND})

#: The keys of a schedule's definition that have arguments.
CALL = frozenset({"args", "kwargs"})


class FieldDifference(NamedTuple):
    name: str
    before: str
    after: str


class EditRow(NamedTuple):
    """One message (or schedule) of an edit. `id`: of the record, by which the list is paged. `number`: of the message,
    if it has a name besides.
    """

    id: int
    name: str
    number: str
    url: str
    differences: list[FieldDifference]
    undone: bool


def rows(store: Store, edit: Edit, after: int, *, payload: bool) -> list[EditRow]:
    """A page of the records behind the id `after`. `payload` False: the reader may not see payloads."""
    records = EditedMessage.objects.using(store.alias).filter(edit=edit, id__gt=after).order_by("id")[:PER_PAGE]
    known = _known(store, [record.message_id for record in records])
    return [_row(edit, record, *known.get(record.message_id, ("", "")), payload=payload) for record in records]


def _known(store: Store, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Kind and key of each of the messages that still is somewhere."""
    found: dict[int, tuple[str, str]] = {}
    for model in (FinishedMessage, Message):
        there = model.objects.using(store.alias).filter(id__in=ids).values_list("id", "kind", "key")
        found |= {id_: (kind, key or "") for id_, kind, key in there}
    return found


def _row(edit: Edit, record: EditedMessage, kind: str, key: str, *, payload: bool) -> EditRow:
    before, after = stored_json(record.before, dict), stored_json(record.after, dict)
    number = f"#{record.message_id}"
    if edit.action == SCHEDULE:
        name, number = str(before.get("name", "")), ""
        url = f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': name})}"
    elif edit.action == PAUSE:
        name, number = str(before.get("queue") or before.get("task")), ""
        url = reverse("admin:delayedq_pausedqueue_changelist")
    else:
        url = reverse("admin:delayedq_message_change", args=[record.message_id])
        name, number = (key, number) if key else (number, "")
    found = [*_differences(before, after, kind, payload=payload)]
    return EditRow(record.pk, visible(name), number, url, found, record.undone)


def _differences(
    before: dict[str, Any], after: dict[str, Any], kind: str, *, payload: bool
) -> Iterator[FieldDifference]:
    """Of what the edit has written; a record may tell more of what was before."""
    for name, value in after.items():
        if name == "payload":
            yield from _arguments(str(before.get(name)), str(value), kind, payload=payload)
        elif name == "definition":
            yield from _definition(before.get(name), value, payload=payload)
        elif before.get(name) != value:
            yield FieldDifference(str(NAMES.get(name, visible(name))), _said(before.get(name)), _said(value))


def _arguments(before: str, after: str, kind: str, *, payload: bool) -> Iterator[FieldDifference]:
    """The arguments that differ, by name, as they may be shown; of what is masked, nobody learns whether it differs."""
    masking = masking_of(kind) if payload else hidden(kind)
    old, new = by_name(kind, before), by_name(kind, after)
    for name in {**old, **new}:
        is_hidden = masking is not None and any(
            masking.hides(name, given[name]) for given in (old, new) if name in given
        )
        if is_hidden or old.get(name) != new.get(name):
            values = [
                "" if name not in given else json.dumps(masking.value(name, given[name]) if masking else given[name])
                for given in (old, new)
            ]
            yield FieldDifference(_("argument %s") % visible(name), *(cut(value, VALUE_LENGTH) for value in values))


def _definition(before: Any, after: Any, *, payload: bool) -> Iterator[FieldDifference]:
    """What differs of the definition of a schedule. `payload` False: not what its arguments are."""
    old, new = stored_json(before, dict), stored_json(after, dict)
    for name in {**old, **new}:
        is_hidden = name in CALL and not (payload and all(map(_is_shown, (old, new))))
        if is_hidden or old.get(name) != new.get(name):
            values = [MASK if is_hidden and name in given else _said(given.get(name)) for given in (old, new)]
            yield FieldDifference(visible(name), *values)


def _is_shown(definition: dict[str, Any]) -> bool:
    return masking_of(str(definition.get("task", ""))) is None


def _said(value: Any) -> str:
    """A value; times in the current time zone."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is not None and timezone.is_aware(moment):
        return exact(moment)
    return cut(value if isinstance(value, str) else json.dumps(value), VALUE_LENGTH)


# Edits


class EditFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("What or why has"), required=False, max_length=NAME_LENGTH)
    by = forms.CharField(label=gettext_lazy("Who"), required=False, max_length=NAME_LENGTH, widget=WithSuggestions())
    since = Moment(label=pgettext_lazy("first time", "From"), required=False)
    until = Until(label=pgettext_lazy("last time", "To"), required=False)

    def chosen(self, edits: QuerySet[Edit]) -> QuerySet[Edit]:
        """Those that it selects; none if it is not valid."""
        if not self.is_valid():
            return edits.none()
        text, by, since, until = (self.cleaned_data[name] for name in ("q", "by", "since", "until"))
        if text:
            edits = edits.filter(Q(description__icontains=text) | Q(why__icontains=text))
        asked = {"made_by": by or None, "made_at__gte": since, "made_at__lte": until}
        return edits.filter(**{name: value for name, value in asked.items() if value is not None})


def _people(store: Store) -> list[str]:
    """Who has done any of it."""
    names = Edit.objects.using(store.alias).exclude(made_by="").order_by("made_by")
    return list(names.values_list("made_by", flat=True).distinct()[:MOST_PEOPLE])


#: At most this many people are suggested.
MOST_PEOPLE = 200


@admin.register(Edit)
class EditAdmin(ReadOnlyAdmin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.undo_view)
        return [path("<int:edit_id>/undo/", view, name="delayedq_edit_undo"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The latest edits first; `after`: continue with those before this id."""
        before, asked = id_in(request.GET.get("after", "")), EditFilter(request.GET)
        edits = asked.chosen(Edit.objects.using(self.store.alias).order_by("-id"))
        found = list((edits if before is None else edits.filter(id__lt=before))[: PER_PAGE + 1])
        asked.fields["by"].widget.names = _people(self.store)
        context = {
            "filter": asked,
            "chips": chips_of(asked, request.GET, ""),
            "rows": [(edit, can_undo(edit) and may(request, TO_UNDO[edit.action])) for edit in found[:PER_PAGE]],
            "now": self.store.now(),
            **paging(request, found[PER_PAGE - 1].pk if len(found) > PER_PAGE else None),
        }
        return self.page(request, "edits.html", _("Edits"), {**context, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        edit = self._known(id_in(object_id) or 0)
        after, now = id_in(request.GET.get("after", "")) or 0, self.store.now()
        edited = rows(self.store, edit, after, payload=may(request, "view_payload"))
        context = {
            "edit": edit,
            "is_of_messages": edit.action in OF_MESSAGES,
            "now": now,
            "edited": edited,
            "next": edited[-1].id if len(edited) == PER_PAGE else None,
            "can_undo": can_undo(edit) and may(request, TO_UNDO[edit.action]),
        }
        return self.page(
            request, "edit.html", visible(edit.description or edit.action), {**context, **(extra_context or {})}
        )

    def undo_view(self, request: HttpRequest, edit_id: int) -> HttpResponse:
        """GET: ask for confirmation. POST: undo one part; the page posts again until all is done."""
        self.demand_view(request)
        edit = self._known(edit_id)
        demand(request, TO_UNDO.get(edit.action, ""))
        if not can_undo(edit):
            messages.warning(request, _("This edit was undone already, or changed nothing."))
            return HttpResponseRedirect(self._url(edit))
        if request.method != "POST":
            edited = rows(self.store, edit, 0, payload=may(request, "view_payload"))
            context = {"edit": edit, "edited": edited[:SAMPLE], "is_of_messages": edit.action in OF_MESSAGES}
            return self.page(request, "undo.html", _("Undo?"), context)
        return self._undo(request, edit)

    def _undo(self, request: HttpRequest, edit: Edit) -> HttpResponse:
        try:
            after, changed, skipped = signing.loads(request.POST.get("ongoing", ""), salt=f"{SALT}.undo.{edit.pk}")
        except signing.BadSignature:
            after, changed, skipped = 0, 0, {}
        progress = undo(self.store, edit, after, request.user.get_username())
        changed, reasons = changed + progress.changed, Counter(skipped) + progress.skipped
        if progress.after is not None:
            ongoing = signing.dumps([progress.after, changed, reasons], salt=f"{SALT}.undo.{edit.pk}")
            return self.page(request, "ongoing.html", _("Undo…"), edit=edit, ongoing=ongoing, given=[])
        self.log_change(request, edit, _("Undone: %(summary)s.") % {"summary": summary(changed, reasons)})
        messages.success(request, _("Undone: %(summary)s.") % {"summary": summary(changed, reasons)})
        return HttpResponseRedirect(self._url(edit))

    def _known(self, id_: int) -> Edit:
        edit = Edit.objects.using(self.store.alias).filter(id=id_).first()
        if edit is None:
            raise Http404(_("There is no such edit; edits are deleted after 30 days."))
        return edit

    def _url(self, edit: Edit) -> str:
        return reverse("admin:delayedq_edit_change", args=[edit.pk])
