"""What runs, and what was lost by its worker: found without reading every live message, for leases are in no index.

What a worker had started is in the worker registry, and what is leased is among what is due, mostly at the front of its
lane. Both are looked at; only what was claimed early and then replaced by a later time may be missing, for the 10 s
until the next heartbeat.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from delayedq.models import Message
from delayedq.operations.browsing import LARGE, PAGE, Page, scan_live
from delayedq.operations.workers import all_workers, running_ids
from delayedq.store.operator import Position, State

if TYPE_CHECKING:
    from delayedq.operations.selecting import Selection
    from delayedq.store.base import Store

#: The states that a lease decides.
LEASED = frozenset({State.RUNNING, State.LOST})
#: At most this many are found in the worker registry, and as many among what is due.
MOST = 1_000


def leased_page(store: Store, selection: Selection, after: Position | None = None) -> tuple[Page[Message], int, bool]:
    """Up to PAGE messages of a selection by one of LEASED, in order of due time, beginning after a position.

    Also how many there are in all, and whether that is exact: else there were more than MOST, or more that are due than
    were looked at.
    """
    due = replace(selection, until=min(selection.until or selection.as_of, selection.as_of))
    scanned = scan_live(store, due, None, MOST)
    found = sorted({*scanned.found, *scanned.beyond, *_registered(store, selection)})
    rest = [position for position in found if after is None or position > after]
    ids = [position.id for position in rest[:PAGE]]
    rows = Message.objects.using(store.alias).defer(*LARGE).in_bulk(ids)
    following = rest[PAGE - 1] if len(rest) > PAGE else None
    return Page([rows[id_] for id_ in ids if id_ in rows], following), len(found), scanned.reached is None


def _registered(store: Store, selection: Selection) -> list[Position]:
    """Of what the workers, also silent ones, ran at their last heartbeat, what is selected."""
    ids = list(islice((id_ for worker in all_workers(store) for id_ in running_ids(worker)), MOST))
    known = selection.messages(store.alias).filter(id__in=ids)
    return [Position(*row) for row in known.values_list("scheduled_at", "id")]
