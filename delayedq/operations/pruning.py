"""Delete history by hand: what ended long ago, and dead letters, which workers never delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.models import FinishedMessage, Outcome
from delayedq.store import operator_store
from delayedq.store.operator import EndedQuery, Position
from delayedq.store.retention import needed_by_features, unneeded_condition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from delayedq.store.base import Store

#: Rows that one statement deletes, at most; each commits by itself.
BATCH = 1_000
#: Rows that one statement reads to find them.
DEPTH = 10_000


class Pruned(NamedTuple):
    """One batch: how many rows were deleted (or would be), and how many of its rows the archive still needs."""

    deleted: int
    needed: int


def prune(
    store: Store, before: datetime, *, dead_letters: bool = False, queue: str | None = None, dry_run: bool = False
) -> Iterator[Pruned]:
    """Delete history that ended before a moment, batch by batch, the latest first; ends when all was visited.

    store: whose history. before: an aware datetime. dead_letters: these, or else all that is not one. queue: only what
    was in this queue. dry_run: count, and delete nothing. What apps have registered as needed stays, and so do the
    messages of flows that have not ended: that is part of the condition of the statement that deletes. Raises
    django.db.Error; what was deleted before stays so.

        sum(batch.deleted for batch in prune(store, store.now() - timedelta(days=30)))
    """
    operator, keep = operator_store(store.alias), unneeded_condition(store.alias)
    rows = FinishedMessage.objects.using(store.alias)
    for of_feature in needed_by_features(store.alias):
        rows = rows.exclude(of_feature)
    rows = rows.failed() if dead_letters else rows.exclude(outcome=Outcome.FAILED)
    asked = EndedQuery(Outcome.FAILED.value if dead_letters else None, queue)
    position: Position | None = Position(before, 0)
    while position is not None:
        page = operator.keyset_scan_history(position, limit=BATCH, budget=DEPTH, asked=asked)
        found = rows.filter(id__in=[one.id for one in page.found], finished_at__lt=before)
        if page.found:
            deletable = found if keep is None else found.filter(keep)
            deleted = deletable.count() if dry_run else store.database.retried(deletable.delete)[0]
            needed = 0 if keep is None else found.count() - (deleted if dry_run else 0)
            yield Pruned(deleted, needed)
        position = page.reached
