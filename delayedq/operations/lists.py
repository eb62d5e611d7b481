"""A page of a list with its count: what the filters and the search of the admin select, for its pages and the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.operations.browsing import (
    PAGE,
    KeyPosition,
    Page,
    SearchResult,
    ended_by_id,
    ended_page,
    find,
    live_page,
)
from delayedq.operations.counting import LEASED, Count, count_live, counted_ended, counted_live, leased_page

if TYPE_CHECKING:
    from delayedq.models import FinishedMessage, Message
    from delayedq.operations.browsing import EndedSelection, Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import Position


class LiveList(NamedTuple):
    """One page, with a count if it is the first. `search`: what a search has found."""

    page: Page[Message]
    number: Count | None
    search: SearchResult | None = None


class EndedList(NamedTuple):
    """One page, with a count if it is the first. `by_id`: before its rows, what has the searched text as its id."""

    page: Page[FinishedMessage]
    number: Count | None
    by_id: list[FinishedMessage]

    @property
    def total(self) -> Count | None:
        """The count, with what was found by its id."""
        return None if self.number is None else self.number._replace(number=self.number.number + len(self.by_id))


def live_list(
    store: Store, selection: Selection, after: Position | KeyPosition | None = None, *, payload: bool = True
) -> LiveList:
    """The page after a position: one among keys where `selection.key` is a search that found some.

    `payload` False: a search does not look at arguments.
    """
    if selection.key is not None:
        found = find(store, selection.key, selection, payload=payload, after=after)
        is_cut = found.by_argument is not None and found.is_cut and len(found.messages) < PAGE
        page = Page(found.messages, found.after, is_cut)
        return LiveList(page, None, found) if after else LiveList(page, _number(store, found, selection), found)
    assert not isinstance(after, KeyPosition)
    if selection.state in LEASED:
        page, number, is_exact = leased_page(store, selection, after)
        return LiveList(page, Count(number, exact=is_exact or None) if after is None else None)
    if after is not None:
        return LiveList(live_page(store, selection, after), None)
    return LiveList(*counted_live(store, selection))


def _number(store: Store, found: SearchResult, selection: Selection) -> Count:
    """How many messages a search has found, also of those that its page does not show."""
    if found.is_cut and found.by_argument is None:
        return count_live(store, selection)
    return Count(len(found.messages), exact=None if found.is_cut else True)


def ended_list(store: Store, selection: EndedSelection, before: Position | None = None) -> EndedList:
    """The page before a position."""
    if before is not None:
        return EndedList(ended_page(store, selection, before), None, [])
    page, count = counted_ended(store, selection)
    return EndedList(page, count, ended_by_id(store, selection))
