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
    from collections.abc import Iterable

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
    """`exact` False: an estimate; None: so many were found before the search was given up."""

    number: int
    exact: bool | None

    def __str__(self) -> str:
        if self.exact:
            return f"{self.number:,}"
        if self.exact is False:
            return f"about {rounded(self.number)}"
        return f"at least {self.number:,}" if self.number else "not yet known how many"

    def without(self, others: Count) -> Count:
        """What is left without some of them, if that can be said."""
        return self._replace(number=self.number - others.number) if self.exact and others.exact else self


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
    else:  # the due index is there for who compares queues, and every queue has a name
        messages = messages.filter(queue__gt="").order_by("queue", "priority", "scheduled_at")
    return _indexed(messages)


def counted_ended(store: Store, selection: EndedSelection) -> tuple[Page[FinishedMessage], Count]:
    """The same in the history."""
    if selection.is_indexed:
        return ended_page(store, selection), count_ended(store, selection)
    walk = ended_walk(store, selection, None, WALKED_BOUND)
    return ended_rows(store, first_page(walk)), _walked(walk, selection.messages(store.alias))


def count_ended(store: Store, selection: EndedSelection) -> Count:
    messages = selection.messages(store.alias)
    if selection.is_indexed:
        return _indexed(messages.order_by("finished_at"))
    return _walked(ended_walk(store, selection, None, WALKED_BOUND), messages)


def counted(lanes: Iterable[QuerySet[Message]], most: int) -> int:
    """How many there are in some lanes together; counts up to `most`.

    In the order of the due index, else PostgreSQL may read the table from its beginning until it has found as many.
    """
    total = 0
    for messages in lanes:
        if total < most:
            total += messages.order_by("scheduled_at")[: most - total].count()
    return total


def bounded(lanes: Iterable[QuerySet[Message]], rows: QuerySet[Message], most: int) -> Count:
    """The same as a Count; `rows` are all of them."""
    return _counted(counted(lanes, most + 1), rows, most)


def _indexed(rows: QuerySet[Any]) -> Count:
    return _counted(rows[: BOUND + 1].count(), rows, BOUND)


def _counted(found: int, rows: QuerySet[Any], most: int) -> Count:
    return Count(found, exact=True) if found <= most else _estimated(rows, most)


def _walked(walk: Walk, rows: QuerySet[Any]) -> Count:
    found = len(walk.found) + len(walk.beyond)
    return Count(found, exact=True) if walk.reached is None else _estimated(rows, found)


def _estimated(rows: QuerySet[Any], at_least: int) -> Count:
    """Only PostgreSQL knows more than that; what it knows nothing of, it takes for one row."""
    estimate = _planned(rows) if connections[rows.db].vendor == "postgresql" else 0
    return Count(estimate, exact=False) if estimate > max(at_least, 1) else Count(at_least, exact=None)


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
