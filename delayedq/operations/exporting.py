"""Export what a filter selects, live or ended, a page at a time: any number of messages in constant memory.

Messages that are moved or end meanwhile may be missed, or come twice.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message
from delayedq.operations.browsing import ended_by_id, find_all, scan_history, scan_live
from delayedq.operations.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from django.db.models import QuerySet

    from delayedq.operations.browsing import EndedSelection, Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import KeysetPage, Position

#: Messages that are read at once.
AT_ONCE = 1_000
LIVE = (
    *("id", "queue", "kind", "key", "priority", "scheduled_at", "scheduled_at_initially", "created_at", "attempt"),
    *("max_attempts", "leased_by", "leased_until", "payload", "metadata", "errors"),
)
ENDED = (
    *("id", "outcome", "queue", "kind", "key", "priority", "scheduled_at", "started_at", "finished_at", "created_at"),
    *("attempts", "max_attempts", "worker", "payload", "metadata", "result", "errors"),
)
#: A spreadsheet takes a cell that begins with one of these for a formula, some also in full width.
FORMULA = frozenset("=+-@\t\r|")


def live_rows(store: Store, selection: Selection, *, payload: bool) -> Iterator[dict[str, Any]]:
    """The live messages of a selection: in order of due time, or by their keys if it searches for one.

    payload False: payloads and errors are masked, and not searched.
    """
    rows = Message.objects.using(store.alias)
    if selection.key is not None:
        parts = find_all(store, selection, payload=payload)
    else:
        parts = _pages(lambda after: scan_live(store, selection, after, AT_ONCE))
    for ids in parts:
        yield from _rows(_in_order(rows, ids), LIVE, payload=payload)


def ended_rows(store: Store, selection: EndedSelection, *, payload: bool) -> Iterator[dict[str, Any]]:
    """The ended messages of a selection, the latest first. payload: as for `live_rows`."""
    selection = selection.searching() if payload else selection
    rows = FinishedMessage.objects.using(store.alias)
    by_id = [one.pk for one in ended_by_id(store, selection)]
    yield from _rows(_in_order(rows, by_id), ENDED, payload=payload)
    for ids in _pages(lambda before: scan_history(store, selection, before, AT_ONCE)):
        yield from _rows(_in_order(rows, ids), ENDED, payload=payload)


def _pages(scan: Callable[[Position | None], KeysetPage]) -> Iterator[list[int]]:
    position: Position | None = None
    while True:
        page = scan(position)
        yield [found.id for found in page.found]
        if page.reached is None:
            return
        position = page.reached


def _in_order(messages: QuerySet[Any], ids: Sequence[int]) -> Iterator[Message | FinishedMessage]:
    """Those that are there still."""
    found = messages.in_bulk(ids)
    return (found[id_] for id_ in ids if id_ in found)


def _rows(
    messages: Iterable[Message | FinishedMessage], names: tuple[str, ...], *, payload: bool
) -> Iterator[dict[str, Any]]:
    for message in messages:
        masked = shown(message, payload=payload)
        yield {name: getattr(masked, name) for name in names}


# Texts


def json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """One JSON object for each line, in ASCII."""
    for row in rows:
        yield json.dumps(row, default=datetime.isoformat) + "\n"


def csv_lines(rows: Iterable[dict[str, Any]], names: tuple[str, ...]) -> Iterator[str]:
    """CSV with a head. What would be a formula gets an apostrophe; control characters are written as escapes."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for cells in _cells(rows, names):
        writer.writerow(cells)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def _cells(rows: Iterable[dict[str, Any]], names: tuple[str, ...]) -> Iterator[list[Any]]:
    yield [*names]
    for row in rows:
        yield [_cell(row[name]) for name in names]


def _cell(value: object) -> Any:
    match value:
        case None:
            return ""
        case int():
            return value
        case datetime():
            return value.isoformat()
        case _:
            text = printable(str(value))
            return f"'{text}" if normalize("NFKC", text[:1]) in FORMULA else text
