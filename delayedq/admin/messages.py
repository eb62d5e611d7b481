"""The live messages: a list in order of due time, the page of one message, and bulk actions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import may, visible
from delayedq.admin.bulk import SAMPLE, BulkChoice, Preview, reasons
from delayedq.admin.changes import LIVE_ACTIONS, RUN_NOW
from delayedq.admin.exports import ExportPages
from delayedq.admin.filters import LiveFilter, key_position_in, position_in
from delayedq.admin.lists import all_with_key, chips_of, found_count, searched, tabs_of, where_leases_are
from delayedq.admin.moments import when
from delayedq.admin.one_message import OneMessagePages, links_of
from delayedq.admin.texts import about, preview_of
from delayedq.core.edits import LanePosition
from delayedq.models import FinishedMessage, Message, with_renewals
from delayedq.operations.browsing import AllOf, Page, Ticked, find, id_in, listed, live_page
from delayedq.operations.counting import LEASED, Count, count_live, counted_live, leased_page
from delayedq.operations.edits import CANCEL, ENDED, RUNNING, cancel, reschedule
from delayedq.operations.pauses import paused_now
from delayedq.operations.wording import span
from delayedq.sql.states import MessageState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse, QueryDict
    from django.utils.safestring import SafeString

    from delayedq.admin.changes import Action, ActionForm
    from delayedq.models import Edit
    from delayedq.operations.browsing import SearchResult, Selection
    from delayedq.operations.edits import EditProgress
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

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
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
        selection, after = asked.selection(now), position_in(request.GET.get("after", ""))
        if selection.key is not None:
            behind, reads = key_position_in(request.GET.get("after", "")), may(request, "view_payload")
            found = find(self.store, selection.key, selection, payload=reads, after=behind)
            if behind is not None:
                return Page(found.messages, found.after), None, ""
            said = searched(selection.key, found)
            return Page(found.messages, found.after), self._number(found, selection), said
        if selection.state in LEASED:
            page, number, is_exact = leased_page(self.store, selection, after)
            return page, Count(number, exact=is_exact or None) if after is None else None, where_leases_are()
        if after is not None:
            return live_page(self.store, selection, after), None, ""
        return (*counted_live(self.store, selection), "")

    def _number(self, found: SearchResult, selection: Selection) -> Count:
        """How many messages a search has found, also of those that its page does not show."""
        is_more = found.is_cut and not found.by_argument
        return count_live(self.store, selection) if is_more else found_count(found)

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

    def preview(self, action: Action, chosen: BulkChoice) -> Preview:  # noqa: ARG002
        now = self.store.now()
        if chosen.ids is None:
            return self._preview_of_all(chosen, now)
        messages = listed(Message.objects.using(self.store.alias))
        chosen_ones = messages.filter(id__in=chosen.ids).order_by("scheduled_at", "id")
        found = with_renewals(chosen_ones, now, self.store.alias)
        waiting = [message for message in found if not is_running(message, now)]
        skipped = Counter({RUNNING: len(found) - len(waiting), ENDED: len(set(chosen.ids)) - len(found)})
        shown = rows(self.store, found[:SAMPLE], now)
        return Preview(Count(len(waiting), exact=True), reasons(skipped.items()), shown)

    def _preview_of_all(self, chosen: BulkChoice, now: datetime) -> Preview:
        selection = self.filter_of(chosen.asked).selection(chosen.as_of)
        count, skipped = count_live(self.store, selection), []
        if selection.state in {None, MessageState.RUNNING}:
            running = count_live(self.store, replace(selection, state=MessageState.RUNNING))
            skipped = [f"{running} {RUNNING}"] if running.number else []
            count = count.without(running)
        shown = live_page(self.store, selection).rows[:SAMPLE]
        return Preview(count, skipped, rows(self.store, shown, now))

    def carry_out(self, action: Action, form: ActionForm, chosen: BulkChoice, edit: Edit, after: int) -> EditProgress:
        which: Ticked | AllOf
        if chosen.ids is None:
            which = AllOf(self.filter_of(chosen.asked).selection(chosen.as_of), chosen.upto)
        else:
            which = Ticked(chosen.ids)
        if action.does == CANCEL:
            return cancel(self.store, edit, which, chosen.as_of, after, chosen.most)
        change = form.change(chosen.as_of)
        assert change is not None
        return reschedule(self.store, edit, which, change, chosen.as_of, after, chosen.most)


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
        place=LanePosition(message.scheduled_at, message.queue, message.priority),
    )


def is_running(message: Message, now: datetime) -> bool:
    return message.leased_until is not None and message.leased_until > now


def state_of(message: Message, now: datetime, paused: Paused) -> tuple[str, str]:
    """The state that the list shows, and a remark on it: `("running", "for 5 s on host:42")`."""
    if is_running(message, now):
        return "running", _running(message, now)
    if message.lease_token is not None:
        return "lost", _("by %(worker)s") % {"worker": visible(message.leased_by or "?")}
    if message.scheduled_at > now:
        return ("retrying", "") if message.attempt else ("scheduled", "")
    if paused.has(message.queue, message.kind):
        return "paused", ""
    return "due", ""


def _running(message: Message, now: datetime) -> str:
    """For how long it has been running, and where."""
    words = _("on %(worker)s") if message.claimed_at is None else _("for %(span)s on %(worker)s")
    running_for = span(now - (message.claimed_at or now))
    return words % {"span": running_for, "worker": visible(message.leased_by or "?")}
