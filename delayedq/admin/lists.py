"""Shared by the lists of messages: a tab for each state, and the filters that are set as removable chips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import QueryDict
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq.admin.base import may
from delayedq.models import Outcome
from delayedq.operations.argument_search import PREFIX, argument_in
from delayedq.operations.browsing import DEPTH
from delayedq.operations.counting import state_counts
from delayedq.operations.wording import grouped, visible
from delayedq.operations.workers import MOST_RUNNING, all_workers, known_running

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from delayedq.admin.filters import ListFilter
    from delayedq.models import FinishedMessage
    from delayedq.operations.argument_search import ArgumentText
    from delayedq.operations.browsing import EndedSelection, SearchResult
    from delayedq.operations.pauses import Paused
    from delayedq.store.base import Store


class Tab(NamedTuple):
    """`number`: how many messages, in short; "" if it is not known. `look`: which mark it has, if any."""

    label: str
    url: str
    number: str
    is_current: bool
    look: str = ""


class Chip(NamedTuple):
    """A filter that is set; `url` is the list without it."""

    label: str
    value: str
    url: str


#: The filters that live and ended messages have in common, and those that bound times: of each kind, other times.
SHARED, TIMES = ("q", "queue", "kind", "priority", "worker"), ("since", "until")


def tabs_of(request: HttpRequest, store: Store, now: datetime, current: str, paused: Paused | None = None) -> list[Tab]:
    """The tabs of the messages that the user may view. `current`: the list shown, "live", "ended" or "errors".

    A tab keeps the filters of the list shown that its own list has, too. Then it has no number, as it is of all.
    """
    counts = state_counts(store, now, paused)
    tabs: list[Tab] = []
    if may(request, "view_message"):
        tabs += _live_tabs(request, counts._asdict(), current)
    if may(request, "view_finishedmessage"):
        tabs += _ended_tabs(request, counts.dead.short, current)
    is_narrowed = bool(_with(request.GET, _kept(current, current)))
    return [tab._replace(number="") for tab in tabs] if is_narrowed else tabs


def _live_tabs(request: HttpRequest, counts: dict[str, Any], current: str) -> Iterator[Tab]:
    """Lost messages have a tab while there are some, as far as is known, or while it is chosen."""
    url, kept = reverse("admin:delayedq_message_changelist"), _kept(current, "live")
    asked = request.GET.get("state", "") if current == "live" else None
    yield Tab(pgettext("tab", "All live"), url + _with(request.GET, kept), counts["live"].short, asked == "")
    for state, label in (
        ("due", pgettext("tab", "Due")),
        ("scheduled", pgettext("tab", "Scheduled")),
        ("running", pgettext("tab", "Running")),
        ("retrying", pgettext("tab", "Retrying")),
        ("paused", pgettext("tab", "Paused")),
        ("lost", pgettext("tab", "Lost")),
    ):
        if state != "lost" or counts[state].number or asked == state:
            yield Tab(label, url + _with(request.GET, kept, state=state), counts[state].short, asked == state, state)


def _ended_tabs(request: HttpRequest, dead: str, current: str) -> Iterator[Tab]:
    """Dead letters by error have filters of their own: where some are kept, the tab leads to them one by one."""
    is_dead = current == "errors" or (current == "ended" and request.GET.get("outcome") == Outcome.FAILED)
    history, kept = reverse("admin:delayedq_finishedmessage_changelist"), _kept(current, "ended")
    narrowed = _with(request.GET, kept)
    one_by_one = history + _with(request.GET, kept, outcome=Outcome.FAILED.value)
    errors = one_by_one if narrowed else reverse("admin:delayedq_finishedmessage_errors")
    yield Tab(pgettext("tab", "Dead letters"), errors, dead, is_dead, "failed")
    yield Tab(_("History"), history + narrowed, "", current == "ended" and not is_dead)


def _kept(current: str, other: str) -> tuple[str, ...]:
    """The filters of the list shown that another one has, too. Those of the errors are its own."""
    if current == "errors":
        return ()
    return SHARED + TIMES if current == other else SHARED


def _with(query: QueryDict, names: Collection[str], **chosen: str) -> str:
    """The query of a list with what is chosen, and those of the named filters that are set; "": none is."""
    asked = QueryDict(mutable=True)
    asked.update(chosen)
    for name in names:
        if query.get(name):
            asked.setlist(name, query.getlist(name))
    return f"?{asked.urlencode()}" if asked else ""


def chips_of(form: ListFilter, query: QueryDict, hidden: str) -> list[Chip]:
    """The filters in the address that are set, but for `hidden`, which a tab shows. Each can be removed by itself."""
    return [
        Chip(str(form.fields[name].label or name), form.shown(name), _without(query, name))
        for name in form.fields
        if name != hidden and query.get(name)
    ]


def _without(query: QueryDict, *names: str) -> str:
    rest = query.copy()
    for name in (*names, "after", LIMITS_AFTER):
        rest.pop(name, None)
    return f"?{rest.urlencode()}"


# Pages. The address of each list has in `after` where its page begins: a position, an id, or a number of rows.


#: Of the limits, which stand above the list of channels, the address has it in this.
LIMITS_AFTER = "limits_after"

#: Rows on a page of a list.
PER_PAGE = 50

#: At most this many rows are skipped.
MOST_SKIPPED = 10_000_000


def paging(
    request: HttpRequest, following: object, said: str = "", *, reached: SafeString | str = "", place: str = "after"
) -> dict[str, Any]:
    """The context of `_pages.html`. `following`: where the next page begins; None or "": this is the last.

    said: how many rows there are, in words. reached: how far was searched, if there may be more rows behind it.
    place: what stands before it in the address, where a page has a second list.
    """
    query = request.GET.copy()
    query.pop(place, None)
    return {
        "said": said,
        "next": following,
        "reached": reached,
        "is_cut": bool(reached),
        "is_first": not request.GET.get(place),
        "query": query.urlencode(),
        "place": place,
    }


def skipped_in(request: HttpRequest, place: str = "after") -> int:
    """How many rows come before the page that the address names; 0 if it names none."""
    text = request.GET.get(place, "")
    return (
        min(int(text), MOST_SKIPPED) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_SKIPPED)) else 0
    )


def page_of[Row](request: HttpRequest, rows: Sequence[Row], place: str = "after") -> tuple[Sequence[Row], int | None]:
    """The page of these rows that the address names, and where the next one begins."""
    first = skipped_in(request, place)
    return rows[first : first + PER_PAGE], first + PER_PAGE if len(rows) > first + PER_PAGE else None


# What a list says of a search: how many it found, and where it looked.


def searched(text: str, found: SearchResult) -> str:
    """Where a search for a text looked; "" if it was found by key or id, and all of it is shown."""
    given = {"text": visible(text)}
    if found.by_argument is None:
        return _("Those whose key begins with “%(text)s”, in the order of their keys.") % given if found.is_cut else ""
    if argument_in(text):
        return in_arguments(found.by_argument)
    if found.messages:
        return _("No id or key fits “%(text)s”, but these messages have it in their arguments.") % given
    if found.is_cut:
        return (
            _(
                "No live message has the id or a key that begins with “%(text)s”. How far arguments were searched"
                " is said below."
            )
            % given
        )
    return _("No live message has “%(text)s” as its id, at the beginning of its key, or in its arguments.") % given


def searched_in_history(
    selection: EndedSelection, found: Sequence[FinishedMessage], query: QueryDict
) -> SafeString | str:
    """The same in the history, where a search for a key looks at no arguments: it offers to, with the other filters."""
    if selection.argument is not None:
        return in_arguments(selection.argument)
    if not selection.key or found:
        return ""
    text = _("No id or key fits “%(text)s”.") % {"text": visible(selection.key)}
    asked = query.copy()
    asked["q"] = f"{PREFIX}:{selection.key}"
    return format_html('{} <a href="?{}">{}</a>', text, asked.urlencode(), _("Search the arguments for it"))


def in_arguments(argument: ArgumentText) -> str:
    """What a search for an argument shows."""
    given = {"name": visible(argument.name or ""), "text": visible(argument.text)}
    if argument.name is None:
        return _("Messages with “%(text)s” in their arguments.") % given
    return _("Messages whose argument %(name)s is “%(text)s”.") % given


def all_with_key(text: str) -> str:
    """What an action on all that match does, where a list was searched."""
    return _("all whose key begins with “%(text)s”") % {"text": visible(text)}


def where_leases_are(store: Store) -> str:
    """How what runs and what was lost is found."""
    said = _(
        "What workers ran at their last heartbeat, and what is leased among the first %(depth)s messages that are due."
    ) % {"depth": grouped(DEPTH)}
    _ids, are_all = known_running(all_workers(store))
    if are_all:
        return said
    more = _("Workers ran more than %(most)s messages: the others are not looked up.")
    return f"{said} {more % {'most': grouped(MOST_RUNNING)}}"
