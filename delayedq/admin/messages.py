"""The live messages: a list in order of due time, the page of one message, and bulk actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import may
from delayedq.admin.changes import LIVE_ACTIONS, RUN_NOW
from delayedq.admin.exports import ExportPages
from delayedq.admin.filters import LiveFilter
from delayedq.admin.lists import all_with_key, chips_of, searched, tabs_of, where_leases_are
from delayedq.admin.moments import when
from delayedq.admin.one_message import OneMessagePages, links_of
from delayedq.admin.texts import about, preview_of
from delayedq.models import FinishedMessage, Message, with_renewals
from delayedq.operations.browsing import KeyPosition, Page, id_in, key_position_in, position_in
from delayedq.operations.bulk import place_of_live, preview_live
from delayedq.operations.counting import LEASED, Count, count_live
from delayedq.operations.lists import live_list
from delayedq.operations.live_states import is_running, state_of
from delayedq.operations.pauses import paused_now
from delayedq.operations.reading import of_one_reading
from delayedq.operations.wording import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse, QueryDict
    from django.utils.safestring import SafeString

    from delayedq.admin.bulk import BulkChoice
    from delayedq.admin.changes import Action
    from delayedq.core.edits import LanePosition
    from delayedq.operations.browsing import Selection
    from delayedq.operations.bulk import Preview
    from delayedq.operations.pauses import Paused
    from delayedq.store.base import Store


class LiveRow(NamedTuple):
    """A live message in a list. `remark` says more of its state. `preview`: the beginning of its arguments."""

    id: int
    url: str
    state: str
    remark: str
    kind: str
    preview: str
    key: str
    queue: str
    priority: int
    due: SafeString | str
    attempt: str
    place: LanePosition


@admin.register(Message)
class MessageAdmin(OneMessagePages, ExportPages):
    bulk_actions = LIVE_ACTIONS

    # The list

    @of_one_reading
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.demand_view(request)
        now = self.store.now()
        paused = paused_now(self.store)
        asked = self.filter_of(request.GET)
        try:
            page, count, searched = self._found(request, asked, now)
        except ValidationError:
            page, count, searched = Page[Message]([], None), Count(0, exact=True), ""
        context = {
            "filter": asked,
            "tabs": tabs_of(request, self.store, now, "live", paused),
            "chips": chips_of(asked, request.GET, "state"),
            "state": request.GET.get("state", ""),
            "searched": searched,
            "rows": rows(self.store, page.rows, now, payload=may(request, "view_payload"), known=paused),
            **self._everything(asked, page, count, now),
            "may_send": may(request, "send_message"),
            **self.paging(request, page, count, now),
        }
        return self.page(request, "messages.html", _("Messages"), {**context, **(extra_context or {})})

    def _everything(self, asked: LiveFilter, page: Page[Message], count: Count | None, now: datetime) -> dict[str, Any]:
        """What all that match are, and how many. A search chooses by the beginning of keys, and not by arguments."""
        if not asked.data.get("q"):
            return {"everything": _("all that match") if count else "", "how_many": count}
        if count is None or not page.rows or not asked.is_valid():
            return {"everything": ""}
        number = count_live(self.store, asked.selection(now))
        label = all_with_key(asked.data["q"]) if number.number else ""
        return {"everything": label, "how_many": number}

    def filter_of(self, query: QueryDict) -> LiveFilter:
        return LiveFilter(query, self.store)

    def _found(self, request: HttpRequest, asked: LiveFilter, now: datetime) -> tuple[Page[Message], Count | None, str]:
        """One page, with a count if it is the first, and what was searched."""
        selection, text = asked.selection(now), request.GET.get("after", "")
        after = position_in(text) if selection.key is None else position_in(text) or key_position_in(text)
        page, count, search = live_list(self.store, selection, after, payload=may(request, "view_payload"))
        if search is not None:
            return page, count, "" if isinstance(after, KeyPosition) else searched(selection.key or "", search)
        return page, count, where_leases_are(self.store) if selection.state in LEASED else ""

    # One message

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        id_ = id_in(object_id) or 0
        message = Message.objects.using(self.store.alias).filter(id=id_).first()
        if message is None:
            return self._ended(id_)
        now = self.store.now()
        (message,) = with_renewals([message], now, self.store.alias)
        reads = may(request, "view_payload")
        context = {
            "message": message,
            "row": rows(self.store, [message], now)[0],
            "query": "",
            "actions": self._useful(request, message, now),
            "links": [*links_of(request, message, self.store, runs=is_running(message, now))],
            "is_running": is_running(message, now),
            **about(self.store, message, now, payload=reads),
        }
        return self.page(
            request, "message.html", _("Message %(id)s") % {"id": message.pk}, {**context, **(extra_context or {})}
        )

    def _useful(self, request: HttpRequest, message: Message, now: datetime) -> list[Action]:
        """The actions that can change this message: none while it runs, and what is due is not made due."""
        if is_running(message, now):
            return []
        actions = self.offered_actions(request)
        return [action for action in actions if action.name != RUN_NOW or message.scheduled_at > now]

    def _ended(self, id_: int) -> HttpResponse:
        if FinishedMessage.objects.using(self.store.alias).filter(id=id_).exists():
            return HttpResponseRedirect(reverse("admin:delayedq_finishedmessage_change", args=[id_]))
        raise Http404(f"There is no message {id_}, neither live nor in the history.")

    # Bulk actions

    def which(self, chosen: BulkChoice) -> Sequence[int] | Selection:
        return self.filter_of(chosen.asked).selection(chosen.as_of) if chosen.ids is None else chosen.ids

    def preview(self, action: Action, chosen: BulkChoice) -> Preview:  # noqa: ARG002
        now, found = self.store.now(), preview_live(self.store, self.which(chosen))
        return found._replace(rows=rows(self.store, found.rows, now))


def rows(
    store: Store, messages: Iterable[Message], now: datetime, *, payload: bool = False, known: Paused | None = None
) -> list[LiveRow]:
    """`payload`: whether to show the beginning of the arguments. `known`: what is paused, if it is known."""
    paused = paused_now(store) if known is None else known
    return [_row(message, now, paused, payload=payload) for message in with_renewals(messages, now, store.alias)]


def _row(message: Message, now: datetime, paused: Paused, *, payload: bool) -> LiveRow:
    state, remark = state_of(message, now, paused)
    return LiveRow(
        id=message.pk,
        url=reverse("admin:delayedq_message_change", args=[message.pk]),
        state=state,
        remark=remark,
        kind=visible(message.kind),
        preview=preview_of(message) if payload else "",
        key=visible(message.key or ""),
        queue=visible(message.queue),
        priority=message.priority,
        due=when(message.scheduled_at, now),
        attempt=_("%(number)s of %(most)s") % {"number": message.attempt, "most": message.max_attempts},
        place=place_of_live(message),
    )
