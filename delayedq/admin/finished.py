"""The history: ended messages, latest first. Failed ones are the dead letters, which can be retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from delayedq.admin.ask import Ask, AskingAdmin, Reply
from delayedq.admin.base import cut, may
from delayedq.admin.bulk import BulkAdmin, BulkChoice, demand_filter
from delayedq.admin.changes import ENDED_ACTIONS
from delayedq.admin.exports import ExportPages
from delayedq.admin.filters import EndedFilter, ListFilter
from delayedq.admin.lists import all_with_key, chips_of, paging, searched_in_history, skipped_in, tabs_of
from delayedq.admin.moments import when
from delayedq.admin.one_message import links_of
from delayedq.admin.queues import points
from delayedq.admin.texts import about, pretty, preview_of
from delayedq.core.bounds import is_storable
from delayedq.core.errors import LINE_LENGTH, class_of
from delayedq.core.masking import MASK
from delayedq.exceptions import DelayedQError
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message, Outcome
from delayedq.operations.archived import Found, find_archived, send_again
from delayedq.operations.browsing import EndedSelection, Page, id_in, position_in
from delayedq.operations.bulk import only_dead, place_of_ended, preview_dead
from delayedq.operations.counting import Count
from delayedq.operations.error_groups import BUCKETS, KNOWN, SHOWN, WIDTH, ErrorGroups, Order, error_groups
from delayedq.operations.group_names import name_of
from delayedq.operations.lists import EndedList, ended_list
from delayedq.operations.reading import of_one_reading
from delayedq.operations.timeline import log_in, records_in
from delayedq.operations.wording import grouped, seconds, visible
from delayedq.sql.waits import waited

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse, QueryDict
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.admin.changes import Action
    from delayedq.core.edits import LanePosition
    from delayedq.operations.bulk import Preview
    from delayedq.operations.error_groups import ErrorGroup

# The dead letters by error: which errors there are, how many of each, and what can be done to all of one.


ORDERS = [
    (Order.MOST.value, gettext_lazy("most dead letters first")),
    (Order.LAST.value, gettext_lazy("latest first")),
    (Order.FIRST.value, gettext_lazy("oldest first")),
]


#: Of more errors than this the page takes a second or more, and is read again less often.
FEW_ERRORS = 1_000


class ErrorFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Error or task has"), required=False, max_length=LINE_LENGTH)
    class_name = forms.CharField(label=gettext_lazy("Class"), required=False, max_length=LINE_LENGTH)
    sort = forms.ChoiceField(label=gettext_lazy("Order"), choices=ORDERS, required=False)

    def found_in(self, groups: ErrorGroups) -> None:
        """Offer the classes of these groups, and the one in the address."""
        asked = self.data.get("class_name", "")
        names = sorted({*groups.classes, asked if is_storable(asked) else ""} - {""})
        choices = [("", gettext_lazy("any")), *((name, visible(name)) for name in names)]
        self.fields["class_name"].widget = forms.Select(choices=choices)


class GroupRow(NamedTuple):
    """An error group in the list. `query`: the filter of the history that has its dead letters, and no others."""

    name: str
    pattern: str
    kind: str
    size: str
    first: SafeString | str
    last: SafeString | str
    points: str
    trend: str
    query: str
    url: str
    latest_url: str


class ErrorPages(BulkAdmin):
    """The pages of errors beside the list of ended messages."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.errors_view)
        return [path("errors/", view, name="delayedq_finishedmessage_errors"), *super().get_urls()]

    def errors_view(self, request: HttpRequest) -> HttpResponse:
        """The first view of the dead letters."""
        self.demand_view(request)
        now, asked, skip = self.store.now(), ErrorFilter(request.GET), min(skipped_in(request), KNOWN)
        found = ErrorGroups([], 0, is_cut=False, classes=[])
        if asked.is_valid():
            given, reads = asked.cleaned_data, may(request, "view_payload")
            wanted = {"text": given["q"], "error_class": given["class_name"], "search_errors": reads}
            order = Order(given["sort"] or Order.MOST)
            found = error_groups(self.store, now, **wanted, order=order, skip=skip)
        asked.found_in(found)
        context = {
            "filter": asked,
            "tabs": tabs_of(request, self.store, now, "errors"),
            "rows": [_group_row(group, now, payload=may(request, "view_payload")) for group in found.groups],
            "is_searched_in_part": found.is_cut,
            "refreshed": 10 if found.known <= FEW_ERRORS else 60,
            "chips": chips_of(asked, request.GET, ""),
            "actions": self.offered_actions(request),
            **paging(request, skip + SHOWN if found.more else None, _following(found.more) if found.more else ""),
        }
        return self.page(request, "errors.html", _("Dead letters by error"), context)


def _following(more: int) -> str:
    text = ngettext("One more error follows.", "%(more)s more errors follow.", more)
    return text % {"more": grouped(more)}


def query_of(fingerprint: int) -> str:
    """The filter of the history that selects the dead letters of an error group."""
    return urlencode({"outcome": Outcome.FAILED.value, "group": name_of(fingerprint)})


def _group_row(group: ErrorGroup, now: datetime, *, payload: bool) -> GroupRow:
    query, history = query_of(group.fingerprint), reverse("admin:delayedq_finishedmessage_changelist")
    name = class_of(group.pattern)
    return GroupRow(
        name=visible(name) or _("No error was recorded"),
        pattern=visible(group.pattern.removeprefix(name).removeprefix(":").strip()) if payload else MASK,
        kind=visible(group.kind),
        size=str(group.size),
        first=when(group.first_at, now),
        last=when(group.last_at, now),
        points=points(group.trend, max(group.trend)),
        trend=_trend(group),
        query=query,
        url=f"{history}?{query}",
        latest_url=reverse("admin:delayedq_finishedmessage_change", args=[group.id]),
    )


def _trend(group: ErrorGroup) -> str:
    number, hours = sum(group.trend), BUCKETS * WIDTH // 3_600
    words = ngettext("%(number)s in the last %(hours)s hours", "%(number)s in the last %(hours)s hours", number)
    return words % {"number": grouped(number), "hours": hours}


# What has left the history for an archive: found by its search, shown as it was, and sent again.


#: Who may send an archived message again: who may retry a dead letter.
PERMISSION = "retry_message"


class ArchivedMessages(AskingAdmin):
    """A part of the history's admin."""

    def archived(self, request: HttpRequest, *, id: int | None = None, key: str | None = None) -> Found:  # noqa: A002
        """What is archived of this id or key. An archive that can't be read is a warning on the page."""
        try:
            return find_archived(self.store, id=id, key=key)
        except DelayedQError as error:
            messages.warning(
                request, _("Archived messages are not shown: %(reason)s") % {"reason": visible(str(error))}
            )
            return Found([])

    def archived_like(self, request: HttpRequest, text: str | None) -> Found:
        """What is archived of a text that was searched for: of this key and, if it is a number, of this id."""
        if not text:
            return Found([])
        by_key, number = self.archived(request, key=text), id_in(text)
        by_id = Found([]) if number is None else self.archived(request, id=number)
        return Found([*by_id.messages, *by_key.messages], by_id.complete and by_key.complete)

    def ended_or_archived(self, request: HttpRequest, object_id: str) -> tuple[FinishedMessage, dict[str, Any]]:
        """The message of this id, and what its page adds if it is archived. Raises Http404."""
        id_ = id_in(object_id)
        if id_ is not None:
            self.demand_view(request)  # before the lake is asked
            if ended := FinishedMessage.objects.using(self.store.alias).filter(id=id_).first():
                return ended, {}
            if found := self.archived(request, id=id_).messages:
                again = self._again_url(id_) if may(request, PERMISSION) else None
                return found[0], {"is_archived": True, "again_url": again, "actions": [], "links": []}
        raise Http404(_("The history has no message %(id)s.") % {"id": object_id[:20]})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.again_view)
        return [path("<int:id_>/again/", view, name="delayedq_finishedmessage_again"), *super().get_urls()]

    def again_view(self, request: HttpRequest, id_: int) -> HttpResponse:
        """Send it again. Raises PermissionDenied, Http404."""
        self.demand(request, PERMISSION)
        ended, more = self.ended_or_archived(request, str(id_))
        if not more:  # it is in the history, where dead letters are retried
            return HttpResponseRedirect(self._page_url(id_))
        said = _(
            "Message %(id)s ended and is archived. Send it again, as a new message that is due at once, with the same "
            "payload, queue, key and priority? If a live message has its key, nothing is sent."
        )
        title, back = _("Send message %(id)s again") % {"id": id_}, self._page_url(id_)
        ask = Ask(_("Send it again"), title, said % {"id": id_}, back)
        return self.ask(request, ask, lambda: self._sent(request, ended))

    def _sent(self, request: HttpRequest, ended: FinishedMessage) -> Reply:
        sent = send_again(self.store, ended)
        if sent is None:
            return Reply(_("A live message has its key: nothing was sent."), did=False, level=messages.WARNING)
        note = _("Sent again: the archived message %(id)s.") % {"id": ended.pk}
        self.log_addition(request, Message(id=sent, kind=ended.kind, key=ended.key), note)
        back = reverse("admin:delayedq_message_change", args=[sent])
        told = _("It was sent again, as message %(id)s.") % {"id": sent}
        return Reply(told, logged=None, back=back, recorded=f"Send archived message {ended.pk} again, as {sent}")

    def _page_url(self, id_: int) -> str:
        return reverse("admin:delayedq_finishedmessage_change", args=[id_])

    def _again_url(self, id_: int) -> str:
        return reverse("admin:delayedq_finishedmessage_again", args=[id_])


# Finished


class EndedRow(NamedTuple):
    """An ended message in a list."""

    id: int
    url: str
    outcome: str
    kind: str
    preview: str
    key: str
    queue: str
    priority: int
    ended: SafeString | str
    #: From due to the start of the last attempt ("-": not known), and how long that ran; "" if none started.
    wait: str
    run: str
    attempts: int
    is_dead: bool
    #: Of a dead letter: the class of its last error, and the first line of what that said.
    error_class: str
    error: str
    place: LanePosition


class ErrorLine(NamedTuple):
    """Why a dead letter is one. `url`: the list of those that have the same error; "" if that is not known."""

    name: str
    said: str
    traceback: str
    url: str
    log: Sequence[str]


@admin.register(FinishedMessage)
class FinishedMessageAdmin(ArchivedMessages, ErrorPages, ExportPages):
    bulk_actions = ENDED_ACTIONS

    @of_one_reading
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.demand_view(request)
        now = self.store.now()
        asked = self.filter_of(request.GET)
        before, reads = position_in(request.GET.get("after", "")), may(request, "view_payload")
        demand_filter(request, request.GET)
        try:
            selection = asked.selection().searching() if reads else asked.selection()
            listed = ended_list(self.store, selection, before)
        except ValidationError:
            selection, listed = EndedSelection(), EndedList(Page([], None), Count(0, exact=True), [])
        found, count = [*listed.by_id, *listed.page.rows], listed.number
        context = {
            "filter": asked,
            "tabs": tabs_of(request, self.store, now, "ended"),
            "chips": chips_of(asked, request.GET, "outcome" if selection.outcome == Outcome.FAILED else ""),
            "has_errors": selection.outcome == Outcome.FAILED,
            "state": request.GET.get("outcome", ""),
            "searched": searched_in_history(selection, found, request.GET) if reads and before is None else "",
            "rows": rows([shown(one, payload=reads) for one in found], now, payload=reads),
            "everything": _everything(selection, count),
            "how_many": count if selection.outcome == Outcome.FAILED else None,  # only dead letters can be retried
            **self.paging(request, listed.page, listed.total, now),
        }
        if before is None:
            archived = self.archived_like(request, selection.key)
            found_there = rows([shown(one, payload=reads) for one in archived.messages], now, payload=reads)
            context |= {"archived_rows": found_there, "archived_complete": archived.complete}
        return self.page(request, "finished.html", _("History"), {**context, **(extra_context or {})})

    def filter_of(self, query: QueryDict) -> EndedFilter:
        return EndedFilter(query, self.store)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        ended, archived = self.ended_or_archived(request, object_id)
        now = self.store.now()
        reads = may(request, "view_payload")
        context = {
            "row": rows([shown(ended, payload=reads)], now)[0],
            "result": pretty(shown(ended, payload=reads).result),
            "last_error": _last_error(shown(ended, payload=reads)),
            "query": "",
            "actions": self.offered_actions(request) if ended.outcome == Outcome.FAILED else [],
            "links": [*links_of(request, ended, self.store)],
            **about(self.store, ended, now, payload=reads),
            **archived,
        }
        return self.page(
            request, "ended.html", _("Message %(id)s") % {"id": ended.pk}, {**context, **(extra_context or {})}
        )

    # Bulk actions

    def which(self, chosen: BulkChoice) -> Sequence[int] | EndedSelection:
        """Of what a filter selects, only dead letters."""
        return only_dead(self.filter_of(chosen.asked).selection()) if chosen.ids is None else chosen.ids

    def preview(self, action: Action, chosen: BulkChoice) -> Preview:
        found = preview_dead(self.store, self.which(chosen), action.does)
        return found._replace(rows=without_errors(rows(found.rows, self.store.now())))


def _everything(selection: EndedSelection, count: Count | None) -> str:
    """What all dead letters that match are; "": there are none, this is a further page, or arguments were searched,
    which is not done to the end.
    """
    if count is None or selection.argument is not None:
        return ""
    if selection.key is None:
        return _("all dead letters that match")
    return "" if count == Count(0, exact=True) else all_with_key(selection.key)


def rows(messages: Iterable[FinishedMessage], now: datetime, *, payload: bool = False) -> list[EndedRow]:
    """`payload`: whether to show the beginning of the arguments, and what errors said."""
    return [_row(message, now, payload=payload) for message in messages]


def without_errors(those: list[EndedRow]) -> list[EndedRow]:
    """Not everybody who may retry may see what errors say."""
    return [row._replace(error="") for row in those]


def _row(message: FinishedMessage, now: datetime, *, payload: bool) -> EndedRow:
    return EndedRow(
        id=message.pk,
        url=reverse("admin:delayedq_finishedmessage_change", args=[message.pk]),
        outcome=message.outcome,
        kind=visible(message.kind),
        preview=preview_of(message) if payload else "",
        key=visible(message.key or ""),
        queue=visible(message.queue),
        priority=message.priority,
        ended=when(message.finished_at, now),
        wait="" if message.started_at is None else seconds(waited(message.scheduled_at, message.started_at)),
        run=""
        if message.started_at is None
        else seconds(max(0.0, (message.finished_at - message.started_at).total_seconds())),
        attempts=message.attempts,
        is_dead=message.outcome == Outcome.FAILED,
        error_class=visible(class_of(message.error or "")),
        error=visible((message.error or "").partition(":")[2].strip()),
        place=place_of_ended(message),
    )


def _last_error(ended: FinishedMessage) -> ErrorLine | None:
    """Of a dead letter; None if its errors have no record that can be read."""
    records = records_in(ended.errors) if ended.outcome == Outcome.FAILED else []
    if not records:
        return None
    name, said, traceback = (cut(str(records[-1].get(part) or "")) for part in ("exception", "message", "traceback"))
    history = reverse("admin:delayedq_finishedmessage_changelist")
    url = f"{history}?{query_of(ended.fingerprint)}" if ended.fingerprint else ""
    return ErrorLine(name, said, traceback, url, [visible(line) for line in log_in(records[-1])])
