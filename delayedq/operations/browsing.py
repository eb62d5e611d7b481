"""Pages of messages, read by index and to a limited depth, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.models import FinishedMessage, Message
from delayedq.store.edits import FIRST, Walk

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.operations.selecting import EndedSelection, Selection
    from delayedq.store.edits import Position
    from delayedq.store.protocol import Store

PAGE = 50
#: A page looks at so many rows at most, as long as each lane may look at one page.
DEPTH = 10_000
#: The history has no index of keys, which every message would pay for at its end: so a search for one goes deeper.
DEPTH_BY_KEY = 5 * DEPTH

#: A list needs none of these, and they may be large.
LARGE = ("payload", "metadata", "errors")


class Page[Row](NamedTuple):
    rows: list[Row]
    #: Where the next page begins; None if there is none.
    after: Position | None
    #: There may be more before that, but it was not found within the depth of a page.
    is_cut: bool = False


def first_page(walk: Walk) -> Walk:
    """The beginning of a longer walk."""
    return Walk(walk.found[:PAGE], walk.found[PAGE - 1]) if len(walk.found) > PAGE else walk


def live_page(store: Store, selection: Selection, after: Position | None = None) -> Page[Message]:
    """The next messages that are due, beginning after a position."""
    return live_rows(store, live_walk(store, selection, after, PAGE))


def live_rows(store: Store, walk: Walk) -> Page[Message]:
    return _page(walk, Message.objects.using(store.alias).defer(*LARGE))


def live_walk(store: Store, selection: Selection, after: Position | None, limit: int) -> Walk:
    lanes = selection.lanes(store)
    return store.walk(
        lanes,
        after or selection.first,
        selection.last,
        limit,
        max(PAGE, DEPTH // max(len(lanes), 1)),
        state=selection.state,
        kind=selection.kind,
        now=selection.as_of,
    )


def ended_page(store: Store, selection: EndedSelection, before: Position | None = None) -> Page[FinishedMessage]:
    """The messages that ended last, beginning before a position."""
    return ended_rows(store, ended_walk(store, selection, before, PAGE))


def ended_rows(store: Store, walk: Walk) -> Page[FinishedMessage]:
    return _page(walk, FinishedMessage.objects.using(store.alias).defer(*LARGE, "result"))


def _page[Row: (Message, FinishedMessage)](walk: Walk, rows: QuerySet[Row]) -> Page[Row]:
    """A page that is not full also has what is further on, say in another queue; the next one shows that again."""
    positions = [*walk.found, *walk.beyond][:PAGE]
    found = rows.in_bulk([position.id for position in positions])
    is_cut = walk.reached is not None and len(walk.found) < PAGE
    return Page([found[position.id] for position in positions if position.id in found], walk.reached, is_cut)


def ended_walk(store: Store, selection: EndedSelection, before: Position | None, limit: int) -> Walk:
    return store.walk_back(
        before or selection.last,
        selection.since or FIRST.at,
        limit,
        DEPTH if selection.key is None else DEPTH_BY_KEY,
        outcome=selection.outcome,
        queue=selection.queue,
        kind=selection.kind,
        key=selection.key,
    )


# By id or key


def find_live(store: Store, text: str) -> list[Message]:
    """Messages with exactly this key, or this id."""
    messages = Message.objects.using(store.alias).defer(*LARGE)
    found = {row.pk: row for row in messages.filter(kind__in=store.keyed_kinds(), key=text)}
    return list((found | _by_id(messages, text)).values())


def find_ended(store: Store, text: str) -> list[FinishedMessage]:
    """The ended message with this id. (Those with a key are a selection.)"""
    return list(_by_id(FinishedMessage.objects.using(store.alias).defer(*LARGE, "result"), text).values())


def _by_id[Row: (Message, FinishedMessage)](rows: QuerySet[Row], text: str) -> dict[int, Row]:
    id_ = id_in(text)
    return {} if id_ is None else rows.in_bulk([id_])


def id_in(text: str) -> int | None:
    """The id that a text is, if it can be one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**63)) else None
