"""The history: ended messages, latest first. Failed ones are the dead letters, which can be retried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.archived import ArchivedMessages
from delayedq.admin.base import cut, may, visible
from delayedq.admin.bulk import SAMPLE, Chosen, Preview, demand_filter
from delayedq.admin.changes import ENDED_ACTIONS
from delayedq.admin.charts import seconds
from delayedq.admin.errors import ErrorPages, query_of
from delayedq.admin.exports import ExportPages
from delayedq.admin.filters import EndedFilter, position_in
from delayedq.admin.lists import chips_of, tabs_of
from delayedq.admin.moments import when
from delayedq.admin.one_message import links_of
from delayedq.admin.texts import about, pretty, preview_of
from delayedq.core.edits import Place
from delayedq.core.fingerprints import class_of
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Outcome
from delayedq.operations.browsing import Page, ended_page, find_ended, id_in, listed
from delayedq.operations.counting import Count, count_ended, counted_ended
from delayedq.operations.discarding import DISCARD, discard
from delayedq.operations.redrive import AllDead, redrive, with_taken_keys
from delayedq.operations.selecting import EndedSelection
from delayedq.operations.timeline import records_in
from delayedq.operations.wording import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse, QueryDict
    from django.utils.safestring import SafeString

    from delayedq.admin.changes import Action, Nothing
    from delayedq.core.edits import Spread
    from delayedq.models import Edit
    from delayedq.operations.edits import Progress
    from delayedq.store.operator import Position


class Row(NamedTuple):
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
    #: From due to the start of the last attempt, and how long that ran.
    wait: str
    run: str
    attempts: int
    is_dead: bool
    #: Of a dead letter: the class of its last error, and the first line of what that said.
    error_class: str
    error: str
    place: Place


class LastError(NamedTuple):
    """Why a dead letter is one. `url`: the list of those that have the same error; "" if that is not known."""

    name: str
    said: str
    traceback: str
    url: str


@admin.register(FinishedMessage)
class FinishedMessageAdmin(ArchivedMessages, ErrorPages, ExportPages):
    bulk_actions = ENDED_ACTIONS

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        now = self.store.now()
        asked = self.filter_of(request.GET)
        before, reads = position_in(request.GET.get("after", "")), may(request, "view_payload")
        demand_filter(request, request.GET)
        try:
            selection = asked.selection()
            page, count = self._found(selection, before)
            found = page.rows if before else [*self._by_id(selection, page.rows), *page.rows]
        except ValidationError:
            selection, page, count, found = EndedSelection(), Page[FinishedMessage]([], None), Count(0, exact=True), []
        context = {
            "filter": asked,
            "tabs": tabs_of(request, self.store, now, "ended"),
            "chips": chips_of(asked, request.GET, "outcome" if selection.outcome == Outcome.FAILED else ""),
            "has_errors": selection.outcome == Outcome.FAILED,
            "state": request.GET.get("outcome", ""),
            "rows": rows([shown(one, payload=reads) for one in found], now, payload=reads),
            "how_many": count if selection.outcome == Outcome.FAILED else None,  # only dead letters can be retried
            **self.paging(request, page, count, now),
        }
        if before is None:
            archived = self.archived_like(request, selection.key)
            found_there = rows([shown(one, payload=reads) for one in archived.messages], now, payload=reads)
            context |= {"archived_rows": found_there, "archived_complete": archived.complete}
        return self.page(request, "finished.html", _("History"), {**context, **(extra_context or {})})

    def filter_of(self, query: QueryDict) -> EndedFilter:
        return EndedFilter(query, self.store)

    def _found(self, selection: EndedSelection, before: Position | None) -> tuple[Page[FinishedMessage], Count | None]:
        """One page, with a count if it is the first."""
        return (
            counted_ended(self.store, selection)
            if before is None
            else (ended_page(self.store, selection, before), None)
        )

    def _by_id(self, selection: EndedSelection, known: list[FinishedMessage]) -> list[FinishedMessage]:
        """Messages whose id is the text that was searched as a key: a number can be either."""
        if selection.key is None or id_in(selection.key) is None:
            return []
        ids = {row.pk for row in known}
        return [row for row in find_ended(self.store, selection.key) if row.pk not in ids]

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

    def preview(self, action: Action, chosen: Chosen) -> Preview:
        now = self.store.now()
        if chosen.ids is None:
            selection = self._dead(chosen)
            sample = ended_page(self.store, selection).rows[:SAMPLE]
            return Preview(count_ended(self.store, selection), [], _without_errors(rows(sample, now)))
        dead = (
            listed(FinishedMessage.objects.using(self.store.alias).failed()).defer("result").filter(id__in=chosen.ids)
        )
        found = list(dead.order_by("-finished_at"))
        taken = [] if action.does == DISCARD else with_taken_keys(self.store, found)
        skipped = [
            f"{grouped(number)} {why}"
            for number, why in (
                (len(set(chosen.ids)) - len(found), _("not dead letters (any more)")),
                (len(taken), _("whose key a live message has")),
            )
            if number
        ]
        return Preview(Count(len(found) - len(taken), exact=True), skipped, _without_errors(rows(found[:SAMPLE], now)))

    def _dead(self, chosen: Chosen) -> EndedSelection:
        """The selection of the list, restricted to dead letters: only those can be retried. Raises ValidationError."""
        selection = self.filter_of(chosen.asked).selection()
        if selection.outcome not in {None, Outcome.FAILED}:
            raise ValidationError(_("Only dead letters can be chosen, and the filter has others."))
        return replace(selection, outcome=Outcome.FAILED)

    def carry_out(self, action: Action, form: Nothing, chosen: Chosen, edit: Edit, after: int) -> Progress:
        which = AllDead(self._dead(chosen), chosen.as_of) if chosen.ids is None else chosen.ids
        if action.does == DISCARD:
            return discard(self.store, edit, which, chosen.as_of, after, chosen.most)
        spread: Spread = form.change(chosen.as_of)  # type: ignore[assignment]  # a RetryForm
        return redrive(self.store, edit, which, spread, chosen.as_of, after, chosen.most)


def rows(messages: Iterable[FinishedMessage], now: datetime, *, payload: bool = False) -> list[Row]:
    """`payload`: whether to show the beginning of the arguments, and what errors said."""
    return [_row(message, now, payload=payload) for message in messages]


def _without_errors(those: list[Row]) -> list[Row]:
    """Not everybody who may retry may see what errors say."""
    return [row._replace(error="") for row in those]


def _row(message: FinishedMessage, now: datetime, *, payload: bool) -> Row:
    return Row(
        id=message.pk,
        url=reverse("admin:delayedq_finishedmessage_change", args=[message.pk]),
        outcome=message.outcome,
        kind=visible(message.kind),
        preview=preview_of(message) if payload else "",
        key=visible(message.key or ""),
        queue=visible(message.queue),
        priority=message.priority,
        ended=when(message.finished_at, now),
        wait=_between(message.scheduled_at, message.started_at),
        run=_between(message.started_at, message.finished_at),
        attempts=message.attempts,
        is_dead=message.outcome == Outcome.FAILED,
        error_class=visible(class_of(message.error or "")),
        error=visible((message.error or "").partition(":")[2].strip()),
        place=Place(message.finished_at, message.queue, message.priority),
    )


def _last_error(ended: FinishedMessage) -> LastError | None:
    """Of a dead letter; None if its errors have no record that can be read."""
    records = records_in(ended.errors) if ended.outcome == Outcome.FAILED else []
    if not records:
        return None
    name, said, traceback = (cut(str(records[-1].get(part) or "")) for part in ("exception", "message", "traceback"))
    history = reverse("admin:delayedq_finishedmessage_changelist")
    return LastError(name, said, traceback, f"{history}?{query_of(ended.fingerprint)}" if ended.fingerprint else "")


def _between(start: datetime | None, end: datetime | None) -> str:
    """A duration; "" if no attempt started."""
    return "" if start is None or end is None else seconds(max(0.0, (end - start).total_seconds()))
