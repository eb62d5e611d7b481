"""How many messages there are: exactly up to a bound, then as the database's planner estimates it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from delayedq.operations.browsing import (
    ended_page,
    ended_rows,
    ended_walk,
    first_page,
    live_page,
    live_rows,
    live_walk,
)

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.models import FinishedMessage, Message
    from delayedq.operations.browsing import Page
    from delayedq.operations.selecting import EndedSelection, Selection
    from delayedq.store.edits import Walk
    from delayedq.store.protocol import Store

#: Up to here rows are counted.
BOUND = 10_000
#: Up to here, if each must be looked at.
WALKED_BOUND = 1_000

_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


class Count(NamedTuple):
    """`exact` False: an estimate; None: there are more than `number`."""

    number: int
    exact: bool | None

    def __str__(self) -> str:
        if self.exact:
            return f"{self.number:,}"
        return f"about {rounded(self.number)}" if self.exact is False else f"more than {self.number:,}"


def counted_live(store: Store, selection: Selection) -> tuple[Page[Message], Count]:
    """The first page, and how many there are in all. What has to be looked at is looked at once for both."""
    if selection.is_indexed:
        return live_page(store, selection), count_live(store, selection)
    walk = live_walk(store, selection, None, WALKED_BOUND)
    return live_rows(store, first_page(walk)), _walked(walk, selection.messages(store.alias))


def count_live(store: Store, selection: Selection) -> Count:
    messages = selection.messages(store.alias)
    if not selection.is_indexed:
        return _walked(live_walk(store, selection, None, WALKED_BOUND), messages)
    if selection.since or selection.until:  # a range of the due index, if the lanes are named
        lanes = selection.lanes(store)
        queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
        messages = messages.filter(queue__in=queues, priority__in=priorities)
    return _bounded(messages)


def counted_ended(store: Store, selection: EndedSelection) -> tuple[Page[FinishedMessage], Count]:
    """The same in the history."""
    if selection.is_indexed:
        return ended_page(store, selection), count_ended(store, selection)
    walk = ended_walk(store, selection, None, WALKED_BOUND)
    return ended_rows(store, first_page(walk)), _walked(walk, selection.messages(store.alias))


def count_ended(store: Store, selection: EndedSelection) -> Count:
    messages = selection.messages(store.alias)
    if selection.is_indexed:
        return _bounded(messages)
    return _walked(ended_walk(store, selection, None, WALKED_BOUND), messages)


def _bounded(rows: QuerySet[Any]) -> Count:
    counted = rows.order_by()[: BOUND + 1].count()
    return Count(counted, exact=True) if counted <= BOUND else _estimated(rows, BOUND)


def _walked(walk: Walk, rows: QuerySet[Any]) -> Count:
    return Count(len(walk.found), exact=True) if walk.reached is None else _estimated(rows, len(walk.found))


def _estimated(rows: QuerySet[Any], at_least: int) -> Count:
    """Only PostgreSQL knows more than that."""
    estimate = _planned(rows) if connections[rows.db].vendor == "postgresql" else 0
    return Count(estimate, exact=False) if estimate > at_least else Count(at_least, exact=None)


def _planned(rows: QuerySet[Any]) -> int:
    """How many rows the planner expects, from its statistics: it reads none."""
    plan = json.loads(rows.order_by().explain(format="json"))[0]["Plan"]
    return int(plan["Plan Rows"])


def rounded(number: int) -> str:
    """Two digits of it: 2.4 M."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}" if number < 10 * unit else f"{round(number / unit):,} {name}"
    return str(number)
