"""Pages of messages: keyset scans that use an index and read a bounded number of rows, however large the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from django.db.models.functions import Left

from delayedq.core.conditions import KeyRange
from delayedq.core.limits import KEY_LENGTH
from delayedq.models import FinishedMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import FIRST, KeysetPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet

    from delayedq.operations.selecting import EndedSelection, Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import Position

PAGE = 50
#: A page reads at most this many rows, divided among the lanes, but at least one page per lane.
DEPTH = 10_000
#: The history has no index on the key (every message would pay for it when it ends), so a search by key reads deeper.
DEPTH_BY_KEY = 5 * DEPTH
#: Texts of errors are in no index, and dead letters lie far apart: each is a page of the table.
DEPTH_BY_ERROR = DEPTH // 2

#: Columns that a list does not need; they may be large.
LARGE = ("payload", "metadata", "errors")
#: Of a payload, a list reads this many characters, as `payload_start`.
PAYLOAD_START = 400


def listed[Row: (Message, FinishedMessage)](messages: QuerySet[Row]) -> QuerySet[Row]:
    """What a list shows of these messages: no large column, but the beginning of the payload."""
    return messages.defer(*LARGE).annotate(payload_start=Left("payload", PAYLOAD_START))


class Page[Row](NamedTuple):
    rows: list[Row]
    #: The position after which the next page begins; None on the last page.
    after: Position | None
    #: The scan stopped at its depth: further on there may be more, though this page is not full.
    is_cut: bool = False


def first_page(page: KeysetPage) -> KeysetPage:
    """The first PAGE rows of a longer keyset scan."""
    return KeysetPage(page.found[:PAGE], page.found[PAGE - 1]) if len(page.found) > PAGE else page


def live_page(store: Store, selection: Selection, after: Position | None = None) -> Page[Message]:
    """Up to PAGE messages in order of due time, beginning after a position; those of a key, in order of keys."""
    if selection.key is not None:
        return Page(by_key(store, selection.key, replace(selection, key=None))[:PAGE], None)
    return live_rows(store, scan_live(store, selection, after, PAGE))


def live_rows(store: Store, page: KeysetPage) -> Page[Message]:
    return _page(page, listed(Message.objects.using(store.alias)))


def scan_live(
    store: Store, selection: Selection, after: Position | None, limit: int, depth: int | None = None
) -> KeysetPage:
    """Positions of up to `limit` live messages of a selection, in order of due time, beginning after a position."""
    lanes = selection.lanes(store)
    return (
        operator_store(store.alias)
        .at(selection.as_of)
        .keyset_scan(
            lanes,
            after or selection.first,
            selection.last,
            limit,
            max(PAGE, (depth or DEPTH) // max(len(lanes), 1)),
            state=selection.state,
            kind=selection.kind,
            argument=selection.argument,
            worker=selection.worker,
        )
    )


def ended_page(store: Store, selection: EndedSelection, before: Position | None = None) -> Page[FinishedMessage]:
    """Up to PAGE ended messages, latest first, beginning before a position."""
    return ended_rows(store, scan_history(store, selection, before, PAGE))


def ended_rows(store: Store, page: KeysetPage) -> Page[FinishedMessage]:
    return _page(page, listed(FinishedMessage.objects.using(store.alias)).defer("result"))


def _page[Row: (Message, FinishedMessage)](page: KeysetPage, rows: QuerySet[Row]) -> Page[Row]:
    """A page that is not full is filled with rows of lanes that were read further; the next page repeats them."""
    positions = [*page.found, *page.beyond][:PAGE]
    found = rows.in_bulk([position.id for position in positions])
    is_cut = page.reached is not None and len(page.found) < PAGE
    return Page([found[position.id] for position in positions if position.id in found], page.reached, is_cut)


def scan_history(store: Store, selection: EndedSelection, before: Position | None, limit: int) -> KeysetPage:
    """Positions of up to `limit` ended messages of a selection, latest first, beginning before a position."""
    return operator_store(store.alias).keyset_scan_history(
        before or selection.last,
        selection.since or FIRST.at,
        limit,
        _depth(selection),
        **selection.asked,
    )


def _depth(selection: EndedSelection) -> int:
    if selection.key is not None:
        return DEPTH_BY_KEY
    return DEPTH if selection.error is None else DEPTH_BY_ERROR


# By id or key


def find_live(store: Store, text: str) -> list[Message]:
    """Live messages with exactly this key, and the one with this id. (`finding` also knows how keys begin.)"""
    messages = listed(Message.objects.using(store.alias))
    kinds = operator_store(store.alias).keyed_kinds()
    found = {row.pk: row for row in messages.filter(kind__in=kinds, key=text)}
    return list((found | _by_id(messages, text)).values())


def by_key(store: Store, text: str, selection: Selection) -> list[Message]:
    """Of a selection, the message with this id, those with this key, then up to PAGE + 1 whose keys begin so."""
    chosen = listed(selection.messages(store.alias))
    found = _by_id(chosen, text)
    for messages in key_ranges(store, text, chosen):
        if len(found) <= PAGE:
            found |= {row.pk: row for row in messages[: PAGE + 1]}
    id_ = id_in(text)
    return sorted(found.values(), key=lambda row: (row.pk != id_, row.key != text, row.key or "", row.pk))


def key_ranges(store: Store, prefix: str, messages: QuerySet[Message]) -> Iterator[QuerySet[Message]]:
    """Those of these messages whose keys begin so: for each kind, one range of the index of keys, in its order."""
    if len(prefix) > KEY_LENGTH:
        return
    keys = KeyRange.of_prefix(prefix)
    for kind in operator_store(store.alias).keyed_kinds():
        yield messages.filter(kind=kind, key__gte=keys.first, key__lte=keys.last).order_by("kind", "key")


def find_ended(store: Store, text: str) -> list[FinishedMessage]:
    """The ended message with this id, if any. (To search by key, use `EndedSelection(key=...)`.)"""
    return list(_by_id(listed(FinishedMessage.objects.using(store.alias)).defer("result"), text).values())


def _by_id[Row: (Message, FinishedMessage)](rows: QuerySet[Row], text: str) -> dict[int, Row]:
    id_ = id_in(text)
    return {} if id_ is None else rows.in_bulk([id_])


def id_in(text: str) -> int | None:
    """The text as an id; None if it is not a whole number of 63 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**63)) else None
