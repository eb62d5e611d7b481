"""How many messages there are: exactly up to a bound, then as the database's planner estimates it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.operations.browsing import ended_walk, live_walk

if TYPE_CHECKING:
    from django.db.models import QuerySet

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


def count_live(store: Store, selection: Selection) -> Count:
    messages = selection.messages(store.alias)
    if selection.is_indexed:
        lanes = selection.lanes(store)
        by_index = messages.filter(
            queue__in={lane.queue for lane in lanes}, priority__in={lane.priority for lane in lanes}
        )
        return _bounded(by_index if selection.since or selection.until else messages)
    return _walked(live_walk(store, selection, None, WALKED_BOUND), messages)


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
    estimate = _planned(rows) if _is_postgresql(rows) else 0
    return Count(estimate, exact=False) if estimate > at_least else Count(at_least, exact=None)


def _is_postgresql(rows: QuerySet[Any]) -> bool:
    from django.db import connections

    return connections[rows.db].vendor == "postgresql"


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
