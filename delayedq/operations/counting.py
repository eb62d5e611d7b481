"""Counts of messages: exact up to a bound, above it the estimate of PostgreSQL's planner or "at least N"."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.fingerprints import LOWEST
from delayedq.models import FinishedMessage
from delayedq.operations.browsing import (
    ended_page,
    ended_rows,
    first_page,
    key_ranges,
    live_page,
    live_rows,
    scan_history,
    scan_live,
)
from delayedq.operations.leases import LEASED, leased_page
from delayedq.operations.wording import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import QuerySet

    from delayedq.models import Message
    from delayedq.operations.browsing import Page
    from delayedq.operations.selecting import EndedSelection, Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import KeysetPage

#: Rows are counted up to this number if an index alone decides,
BOUND = 10_000
#: and up to this number if each row must be read.
SCANNED_BOUND = 1_000

_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


class Count(NamedTuple):
    """A number of messages. `exact`: True; False: an estimate; None: a lower bound, at which the search stopped."""

    number: int
    exact: bool | None

    def __str__(self) -> str:
        if self.exact:
            return grouped(self.number)
        if self.exact is False:
            return _("about %(number)s") % {"number": rounded(self.number)}
        if not self.number:
            return _("not yet known how many")
        return _("at least %(number)s") % {"number": grouped(self.number)}

    @property
    def short(self) -> str:
        """For a tab: 1,234, ~2.4 M, 1,000+; "" if nothing is known."""
        if self.exact is None:
            return f"{grouped(self.number)}+" if self.number else ""
        return grouped(self.number) if self.exact else f"~{rounded(self.number)}"

    @property
    def of_messages(self) -> str:
        """Such as "1 message", "about 2.4 M messages"."""
        unknown = self.exact is None and not self.number
        number = 2 if unknown else self.number
        return ngettext("%(count)s message", "%(count)s messages", number) % {"count": self}

    @property
    def most(self) -> int:
        """At how many an action stops that was confirmed by this count. If it is not exact, some more may match."""
        if self.exact:
            return self.number
        return _rounded_up(2 * self.number) if self.exact is False else max(10 * self.number, BOUND)

    def without(self, others: Count) -> Count:
        """The count less that of a subset; unchanged unless both are exact."""
        return self._replace(number=self.number - others.number) if self.exact and others.exact else self


def counted_live(store: Store, selection: Selection) -> tuple[Page[Message], Count]:
    """The first page and the count of a selection; one scan serves both if rows must be read to decide."""
    if selection.state in LEASED:
        found, number, is_exact = leased_page(store, selection)
        return found, Count(number, exact=is_exact or None)
    if selection.is_indexed or selection.is_range:
        return live_page(store, selection), count_live(store, selection)
    page = scan_live(store, selection, None, SCANNED_BOUND)
    return live_rows(store, first_page(page)), _count(page, selection.messages(store.alias))


def count_live(store: Store, selection: Selection) -> Count:
    """The number of live messages of a selection: exact up to BOUND, or SCANNED_BOUND if rows must be read."""
    messages = selection.messages(store.alias)
    if selection.state in LEASED and selection.key is None:
        return counted_live(store, selection)[1]
    if selection.key is not None:
        return _keyed(store, selection.key, messages)
    if selection.is_range:
        return bounded_rows(_in_lanes(store, selection), SCANNED_BOUND)
    if not selection.is_indexed:
        return _count(scan_live(store, selection, None, SCANNED_BOUND), messages)
    if selection.since or selection.until or selection.priority is not None:
        return _indexed(_in_lanes(store, selection))
    # The due index is partial: the planner uses it only if the query compares `queue`; no queue is "".
    return _indexed(messages.filter(queue__gt="").order_by("queue", "priority", "scheduled_at"))


def _keyed(store: Store, prefix: str, messages: QuerySet[Message]) -> Count:
    found: int = 0
    for rows in key_ranges(store, prefix, messages):
        found += rows[: BOUND + 1 - found].count() if found <= BOUND else 0
    return _counted(found, messages, BOUND)


def counted_ended(store: Store, selection: EndedSelection) -> tuple[Page[FinishedMessage], Count]:
    """The first page and the count of a selection of ended messages, like `counted_live`."""
    if selection.is_indexed:
        return ended_page(store, selection), count_ended(store, selection)
    page = scan_history(store, selection, None, SCANNED_BOUND)
    return ended_rows(store, first_page(page)), _share(store, selection, page)


def count_ended(store: Store, selection: EndedSelection) -> Count:
    """The same for ended messages."""
    if selection.is_indexed and (rows := _of_an_index(store, selection)) is not None:
        return _indexed(rows)
    return _share(store, selection, scan_history(store, selection, None, SCANNED_BOUND))


def _of_an_index(store: Store, selection: EndedSelection) -> QuerySet[Any] | None:
    """A selection of ended messages by the columns of one index alone, of which no row is read; None: none has them.

    MySQL has no index of the dead letters by time; as they alone have a fingerprint, all of them have one by that.
    """
    rows = selection.messages(store.alias)
    if selection.fingerprint is not None:
        return rows.order_by("fingerprint", "finished_at").values("finished_at")
    if selection.outcome is None or connections[store.alias].features.supports_partial_indexes:
        return rows.order_by("finished_at").values("finished_at")
    if selection.since or selection.until:
        return None
    dead = FinishedMessage.objects.using(store.alias).filter(fingerprint__gte=LOWEST)
    return dead.order_by("fingerprint").values("fingerprint")


def counted(lanes: Iterable[QuerySet[Message]], most: int) -> int:
    """The number of rows of some lanes together, at most `most`.

    Ordered like the due index: without an order PostgreSQL may read the table from its beginning until it has enough.
    """
    total = 0
    for messages in lanes:
        if total < most:
            total += messages.order_by("scheduled_at")[: most - total].count()
    return total


def bounded(lanes: Iterable[QuerySet[Message]], rows: QuerySet[Message], most: int) -> Count:
    """The same as a Count that is exact up to `most`; above it, `rows` (those of all lanes) are estimated."""
    return _counted(counted(lanes, most + 1), rows, most)


def bounded_rows(rows: QuerySet[Any], most: int) -> Count:
    """Of rows that an index finds: exact up to `most`, above it an estimate."""
    return _counted(rows[: most + 1].count(), rows, most)


def _in_lanes(store: Store, selection: Selection) -> QuerySet[Message]:
    """A selection by what decides a range of the due index in each of its lanes, which are named."""
    lanes = selection.lanes(store)
    queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
    return selection.messages(store.alias).filter(queue__in=queues, priority__in=priorities)


def _indexed(rows: QuerySet[Any]) -> Count:
    return bounded_rows(rows, BOUND)


def _counted(found: int, rows: QuerySet[Any], most: int) -> Count:
    return Count(found, exact=True) if found <= most else _estimated(rows, most)


def _count(page: KeysetPage, rows: QuerySet[Any]) -> Count:
    found = len(page.found) + len(page.beyond)
    if page.reached is None or not found:  # an estimate says little of what was not met once
        return Count(found, exact=page.reached is None or None)
    return _estimated(rows, found)


def _share(store: Store, selection: EndedSelection, page: KeysetPage) -> Count:
    """The count of ended messages, of which a scan read the latest: as many of the others are taken to match.

    The planner would multiply the shares of a task and of failures, as if all tasks failed alike.
    """
    found = len(page.found)
    if page.reached is None or not found or connections[store.alias].vendor != "postgresql":
        return Count(found, exact=page.reached is None or None)
    scanned = replace(selection, **dict.fromkeys(("queue", "kind", "key", "error")))
    if not scanned.is_indexed:
        scanned = replace(scanned, outcome=None)
    estimate = _planned(scanned.messages(store.alias)) * found // max(page.read, found)
    return Count(estimate, exact=False) if estimate > found else Count(found, exact=None)


def _estimated(rows: QuerySet[Any], at_least: int) -> Count:
    """PostgreSQL's estimate if it has one: without statistics it plans one row. Else the lower bound."""
    estimate = _planned(rows) if connections[rows.db].vendor == "postgresql" else 0
    return Count(estimate, exact=False) if estimate > max(at_least, 1) else Count(at_least, exact=None)


def _planned(rows: QuerySet[Any]) -> int:
    """The number of rows that the planner expects from its statistics; no row is read."""
    plan = json.loads(rows.order_by().explain(format="json"))[0]["Plan"]
    return int(plan["Plan Rows"])


def _rounded_up(number: int) -> int:
    """To two significant digits: 124,001 becomes 130,000."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit


def rounded(number: int) -> str:
    """The number with about two significant digits and a unit: 2.4 M, 37 k."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{grouped(number / unit, digits=int(number < 10 * unit))} {name}"
    return str(number)
