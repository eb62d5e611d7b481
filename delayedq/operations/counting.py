"""Counts of messages: exact up to a bound, above it the estimate of PostgreSQL's planner or "at least N"."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.errors import LOWEST
from delayedq.core.sampling import sample, whole
from delayedq.models import FinishedMessage, Message, has_run_out, is_free, is_held
from delayedq.operations.browsing import (
    DEPTH,
    PAGE,
    EndedSelection,
    Page,
    Selection,
    ended_page,
    ended_rows,
    first_page,
    key_ranges,
    listed,
    live_page,
    live_rows,
    scan_history,
    scan_live,
    united,
)
from delayedq.operations.pauses import paused_now
from delayedq.operations.reading import lanes_of
from delayedq.operations.wording import grouped
from delayedq.operations.workers import AT_ONCE, all_workers, is_alive, known_running
from delayedq.sql.states import MessageState, states_of
from delayedq.store.operator import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample
    from delayedq.models import Worker
    from delayedq.operations.pauses import Paused
    from delayedq.store.base import Store
    from delayedq.store.operator import KeysetPage
    from delayedq.store.protocol import Lane

# What runs, and what was lost by its worker: found without reading every live message, for leases are in no index.
#
# What a worker had started is in the worker registry, and what is leased is among what is due, mostly at the front of
# its lane. Both are looked at; only what was claimed early and then replaced by a later time may be missing, for the
# 10 s until the next heartbeat.


#: The states that a lease decides.
LEASED = frozenset({MessageState.RUNNING, MessageState.LOST})


def leased_page(store: Store, selection: Selection, after: Position | None = None) -> tuple[Page[Message], int, bool]:
    """Up to PAGE messages of a selection by one of LEASED, in order of due time, beginning after a position.

    Also how many there are in all, and whether that is exact: else workers ran more, or more are due, than were looked
    at.
    """
    due = replace(selection, until=min(selection.until or selection.as_of, selection.as_of))
    scanned = scan_live(store, due, None, DEPTH)
    registered, are_all = _registered(store, selection)
    found = sorted({*scanned.found, *scanned.beyond, *registered})
    rest = [position for position in found if after is None or position > after]
    ids = [position.id for position in rest[:PAGE]]
    rows = listed(Message.objects.using(store.alias)).in_bulk(ids)
    following = rest[PAGE - 1] if len(rest) > PAGE else None
    is_exact = scanned.reached is None and are_all
    return Page([rows[id_] for id_ in ids if id_ in rows], following), len(found), is_exact


def _registered(store: Store, selection: Selection) -> tuple[list[Position], bool]:
    """Of what workers, also silent ones, ran at their last heartbeat, what is selected; whether all was looked up."""
    ids, are_all = known_running(all_workers(store))
    chosen = selection.messages(store.alias)
    known = [chosen.filter(id__in=some).values_list("scheduled_at", "id") for some in batched(ids, AT_ONCE)]
    return [Position(*row) for rows in known for row in rows], are_all


# Counting


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
        return bounded_rows(_in_lanes(store, selection), SCANNED_BOUND, messages)
    if not selection.is_indexed:
        return _count(scan_live(store, selection, None, SCANNED_BOUND), messages)
    if selection.since or selection.until or selection.priority is not None:
        return bounded_rows(_in_lanes(store, selection), BOUND, messages)
    # The due index is partial: the planner uses it only if the query compares `queue`; no queue is "".
    return _indexed(messages.filter(queue__gt="").order_by("queue", "priority", "scheduled_at"))


def _keyed(store: Store, prefix: str, messages: QuerySet[Message]) -> Count:
    found: int = 0
    for rows in united(key_ranges(store, prefix, messages.values("pk")), BOUND + 1):
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


def bounded_rows(rows: QuerySet[Any], most: int, planned: QuerySet[Any] | None = None) -> Count:
    """Of rows that an index finds: exact up to `most`, above it an estimate.

    planned: the same rows, asked for as the planner estimates them well (see `outside`); if None, `rows`.
    """
    return _counted(rows[: most + 1].count(), rows if planned is None else planned, most)


def _in_lanes(store: Store, selection: Selection) -> QuerySet[Message]:
    """A selection by what decides a range of the due index in each of its lanes, which are named."""
    lanes = selection.lanes(store)
    queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
    return selection.messages(store.alias).filter(queue__in=queues, priority__in=priorities)


def _indexed(rows: QuerySet[Any]) -> Count:
    return bounded_rows(rows, BOUND)


def _counted(found: int, rows: QuerySet[Any], most: int) -> Count:
    return _bounded_each([rows], [found], most)[0]


def _count(page: KeysetPage, rows: QuerySet[Any]) -> Count:
    found = len(page.found) + len(page.beyond)
    if page.reached is None or not found:  # an estimate says little of what was not met once
        return Count(found, exact=page.reached is None or None)
    return _estimated(rows, found)


def _share(store: Store, selection: EndedSelection, page: KeysetPage) -> Count:
    """The count of ended messages, of which a scan read the latest: as many of the others are taken to match.

    The planner would multiply the shares of a task and of failures, as if all tasks failed alike. Keys, errors and
    arguments come in clusters: of them a part says nothing of the whole, and what was found is a lower bound.
    """
    found, is_text = len(page.found), {selection.key, selection.error, selection.argument} != {None}
    if page.reached is None or not found or is_text or connections[store.alias].vendor != "postgresql":
        return Count(found, exact=page.reached is None or None)
    scanned = replace(selection, **dict.fromkeys(("queue", "kind")))
    if not scanned.is_indexed:
        scanned = replace(scanned, outcome=None)
    estimate = _planned(scanned.messages(store.alias)) * found // max(page.read, found)
    return Count(estimate, exact=False) if estimate > found else Count(found, exact=None)


def _estimated(rows: QuerySet[Any], at_least: int) -> Count:
    return estimated_each([rows], at_least)[0]


def estimated_each(rows: Sequence[QuerySet[Any]], at_least: int) -> list[Count]:
    """PostgreSQL's estimates in one statement, where it has them: without statistics it plans one row. Else, and if its
    plan has not one part for each, the lower bound.
    """
    expected = _planned_each(rows) if rows and connections[rows[0].db].vendor == "postgresql" else []
    return [
        Count(number, exact=False) if number > max(at_least, 1) else Count(at_least, exact=None)
        for number in expected or [0] * len(rows)
    ]


def _bounded_each(rows: Sequence[QuerySet[Any]], found: Sequence[int], most: int) -> list[Count]:
    """Counts that are exact up to `most`; what is above it is estimated, in one statement.

    found: how many rows of each were met, up to `most` + 1.
    """
    estimates = iter(estimated_each([one for one, number in zip(rows, found, strict=True) if number > most], most))
    return [Count(number, exact=True) if number <= most else next(estimates) for number in found]


def _planned_each(rows: Sequence[QuerySet[Any]]) -> list[int]:
    if len(rows) == 1:
        return [_planned(rows[0])]
    first, *others = (each.order_by().values("id") for each in rows)
    plan = json.loads(first.union(*others, all=True).explain(format="json"))[0]["Plan"]
    parts = plan.get("Plans", []) if plan["Node Type"] == "Append" else []
    return [int(part["Plan Rows"]) for part in parts] if len(parts) == len(rows) else []


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


# Bounded reading: a range is read as a whole if it is small, else a sample of it.


#: About this many rows are read at most; of more, a sample is read.
MOST = 30_000

#: The share of the first sample, taken before anything is known, and the largest growth from one sample to the next.
FIRST_SHARE, GROWTH = 1 / 500, 50


def read_bounded[Answer](
    rows: QuerySet[Any],
    ends: tuple[int, int],
    read: Callable[[Sample], Answer],
    size: Callable[[Answer], int],
    times: int = 1,
) -> tuple[Sample, Answer]:
    """Read a range as a whole if it has at most `times` * MOST rows, else a sample of about half that size.

    `rows`: those of the range, in the order of an index and with only its columns. `read` answers for a sample;
    `size` is the number of rows that an answer covers. Returns the sample and the answer for it.
    """
    most = times * MOST
    part = sample(*ends, FIRST_SHARE) if rows[most : most + 1] else whole(*ends)
    while (found := size(answer := read(part))) < most / 4 and not part.is_whole:
        part = sample(*ends, min(GROWTH, most / 2 / max(found, 1)) / part.scale)
    return part, answer


def ids_since(rows: QuerySet[Any], moment: datetime) -> tuple[int, int]:
    """A range of ids (from, up to) that has all rows created since `moment` and few others: ids rise with time."""
    lowest, highest = (_created(rows.order_by(order)) for order in ("id", "-id"))
    if lowest is None or highest is None:
        return 0, 0
    low, high = lowest[0], highest[0]
    while high - low > MOST // 100:
        middle = (low + high) // 2
        found = _created(rows.filter(id__gte=middle).order_by("id"))
        if found is None or found[1] >= moment:
            high = middle
        else:
            low = found[0]
    return low, highest[0] + 1


def _created(rows: QuerySet[Any]) -> tuple[int, datetime] | None:
    return rows.values_list("id", "created_at").first()


# How many messages are in each state: exact for a small queue, of a long one counted up to a bound or estimated.


#: Up to this many live messages are read one by one, which answers for all states at once.
FEW = 1_000

#: Of more, those that wait for another attempt or whose task is paused are looked for among this many.
LOOK = 2_000


class StateCounts(NamedTuple):
    """Each a number of messages. `paused`: what is due of paused queues and tasks, which is counted as due too.

    lost: what is due and had a worker; among many messages, those that silent workers ran at their last heartbeat.
    """

    live: Count
    due: Count
    scheduled: Count
    running: Count
    retrying: Count
    paused: Count
    dead: Count
    lost: Count


def state_counts(store: Store, now: datetime, paused: Paused | None = None) -> StateCounts:
    """The counts of the tabs. Reads a bounded number of rows, in at most 15 statements.

    `paused`: what is paused, if it is known.
    """
    paused = paused_now(store) if paused is None else paused
    dead = count_ended(store, EndedSelection(outcome="failed"))
    held = Message.objects.using(store.alias).annotate(is_held=is_held(now)).filter(queue__gt="")
    columns = held.order_by("queue", "priority", "scheduled_at").values_list(
        "queue", "kind", "scheduled_at", "attempt", "is_held", "lease_token"
    )
    rows = list(columns[: FEW + 1])
    if len(rows) > FEW:
        return _many(store, now, paused, dead)
    counts: Counter[str] = Counter()
    for queue, kind, scheduled_at, attempt, is_held_, lease_token in rows:
        lease = "held" if is_held_ else "free"
        counts.update(
            states_of(lease, is_due=scheduled_at <= now, was_tried=attempt > 0, is_paused=paused.has(queue, kind))
        )
        counts[MessageState.LOST] += lease_token is not None and not is_held_
    exact = {state: Count(counts[state], exact=True) for state in MessageState}
    return StateCounts(
        Count(len(rows), exact=True),
        exact[MessageState.DUE],
        exact[MessageState.SCHEDULED],
        exact[MessageState.RUNNING],
        exact[MessageState.RETRYING],
        exact[MessageState.PAUSED],
        dead,
        exact[MessageState.LOST],
    )


def _many(store: Store, now: datetime, paused: Paused, dead: Count) -> StateCounts:
    lanes = lanes_of(store)
    is_due, is_scheduled = Q(is_free(now), scheduled_at__lte=now), Q(scheduled_at__gt=now, attempt=0)
    due = in_lanes(store, lanes).filter(is_due)
    found = [FEW + 1, *(rows[: FEW + 1].count() for rows in (due, in_lanes(store, lanes).filter(is_scheduled)))]
    live, workers = outside(store, ()), all_workers(store)
    counts = _bounded_each([live, live.filter(is_due), live.filter(is_scheduled)], found, FEW)
    return StateCounts(
        live=counts[0],
        due=counts[1],
        scheduled=counts[2],
        running=Count(sum(worker.held for worker in workers if is_alive(worker, now)), exact=False),
        retrying=_scanned(store, Selection(as_of=now, state=MessageState.RETRYING)),
        paused=_paused(store, now, paused, due),
        dead=dead,
        lost=_lost(store, now, workers),
    )


def _paused(store: Store, now: datetime, paused: Paused, due: QuerySet[Message]) -> Count:
    if paused.kinds:
        return _scanned(store, Selection(as_of=now, state=MessageState.PAUSED))
    return bounded_rows(due.filter(queue__in=paused.queues), FEW) if paused.queues else Count(0, exact=True)


def _lost(store: Store, now: datetime, workers: Iterable[Worker]) -> Count:
    """Of what silent workers ran, at least what nobody holds: one statement, and none where no worker is silent."""
    ids, _are_all = known_running(worker for worker in workers if not is_alive(worker, now))
    lost = Message.objects.using(store.alias).filter(has_run_out(now), id__in=ids[:AT_ONCE])
    return Count(lost.count(), exact=None)


def _scanned(store: Store, selection: Selection) -> Count:
    """What no index has, counted among the first LOOK."""
    page = scan_live(store, selection, None, FEW, LOOK)
    return Count(len(page.found), exact=True if page.reached is None else None)


def in_lanes(store: Store, lanes: list[Lane]) -> QuerySet[Message]:
    """All messages, found by their lanes: the due index serves a range of time only within one."""
    queues, priorities = {lane.queue for lane in lanes}, {lane.priority for lane in lanes}
    return Message.objects.using(store.alias).filter(queue__in=queues, priority__in=priorities)


def outside(store: Store, queues: Collection[str]) -> QuerySet[Message]:
    """All messages but those of these queues, as the planner estimates them well.

    Of a list of names that together have nearly all rows, it adds up the shares; if their sum is above 1 by ever so
    little, it takes the names for independent, and its estimate is too low by up to 37 %.
    """
    rows = Message.objects.using(store.alias).filter(queue__gt="")
    return rows.exclude(queue__in=queues) if queues else rows
