"""Dead letters: redriven (retried), or discarded; many at once, as edits that can be undone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_noop

from delayedq.core.instants import instant, microseconds
from delayedq.models import Edit, FinishedMessage, Message, Outcome
from delayedq.operations.browsing import CHUNK, DEPTH
from delayedq.operations.edits import (
    ENDED,
    KEY_TAKEN,
    MEANWHILE,
    Done,
    EditProgress,
    Record,
    Write,
    carry_out,
    edited_since,
)
from delayedq.store import operator_store
from delayedq.store.operator import FIRST, LAST, Position, Revival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from delayedq.core.edits import Spread
    from delayedq.operations.browsing import EndedSelection
    from delayedq.store.base import Store

# Redrive: dead letters become live messages again, with their old ids and attempt 0.
#
# The data of past attempts (errors, worker, times) moves from the history row into the record of the edit. A dead
# letter whose key a live message has by now is skipped.


_TIMES = ("started_at", "finished_at", "scheduled_at", "scheduled_at_initially")

#: Columns of a dead letter that a redriven message does not keep; the record of the edit keeps them.
LEFT_BEHIND = (*_TIMES, "attempts", "errors", "worker", "error", "fingerprint")


@dataclass(frozen=True, slots=True)
class AllDead:
    """All dead letters of a selection that ended by `by`; messages that fail again later are left out."""

    selection: EndedSelection
    by: datetime

    def chunks(self, store: Store) -> Iterator[list[Position]]:
        """Chunks of positions, from the latest end to the earliest."""
        chosen = self.selection
        position: Position | None = LAST._replace(at=min(self.by, chosen.until or self.by))
        while position is not None:
            page = operator_store(store.alias).keyset_scan_history(
                position,
                chosen.since or FIRST.at,
                CHUNK,
                DEPTH,
                chosen.asked._replace(outcome=Outcome.FAILED),
            )
            if page.found:
                yield page.found
            position = page.reached


def redrive(
    store: Store,
    edit: Edit,
    chosen: Sequence[int] | AllDead,
    spread: Spread,
    as_of: datetime,
    after: int = 0,
    most: int | None = None,
) -> EditProgress:
    """Put dead letters back into their queues, due over the period of `spread` (a period of 0: all at its start).

    At most CHUNKS chunks in one call. `after`: the `after` of the previous call's EditProgress; for AllDead that is the
    end time, in microseconds since 1970, of the last dead letter reached. `most`: as for `edits.reschedule`.
    """
    do = partial(_redrive, store, edit, spread, as_of)
    if not isinstance(chosen, AllDead):
        return carry_out(store, edit, map(list, batched(chosen, CHUNK)), do, most)
    return by_position(store, edit, chosen, do, after, most)


def by_position(
    store: Store,
    edit: Edit,
    chosen: AllDead,
    do: Callable[[list[int]], Write],
    after: int = 0,
    most: int | None = None,
) -> EditProgress:
    """`carry_out` for all dead letters of a selection, from the latest end to the earliest; see `redrive`."""
    which = replace(chosen, by=instant(after)) if after else chosen
    ends: list[datetime] = []

    def chunks() -> Iterator[list[int]]:
        for chunk in which.chunks(store):
            ends.append(chunk[-1].at)
            yield [position.id for position in chunk]

    progress = carry_out(store, edit, chunks(), do, most)
    return progress if progress.after is None else progress._replace(after=microseconds(ends[-1]))


def _redrive(store: Store, edit: Edit, spread: Spread, as_of: datetime, ids: list[int]) -> Write:
    failed = FinishedMessage.objects.using(store.alias).failed().defer("payload", "metadata", "result")
    dead = failed.in_bulk(list(set(ids) - edited_since(store, edit, ids, as_of)))
    revivals = [
        Revival(id_, spread.at(edit.changed + rank, random.random()))  # noqa: S311 - spreads load, guards nothing
        for rank, id_ in enumerate(dead)
    ]

    def write() -> Done:
        revived = operator_store(store.alias).revive(revivals, Outcome.FAILED)
        records = [_record(dead[one.id], one) for one in revivals if one.id in revived]
        return Done(records, +_skipped(store, ids, dead, revived))

    return write


def _skipped(store: Store, ids: list[int], dead: dict[int, FinishedMessage], revived: set[int]) -> Counter[str]:
    left = [dead[id_] for id_ in dead.keys() - revived]
    blocked = len(with_taken_keys(store, left))
    return Counter({KEY_TAKEN: blocked, MEANWHILE: len(left) - blocked, ENDED: len(ids) - len(dead)})


def with_taken_keys(store: Store, dead: Iterable[FinishedMessage]) -> list[FinishedMessage]:
    """The dead letters whose key a live message of their kind has, so that they cannot be redriven."""
    keyed = [row for row in dead if row.key is not None]
    kinds, keys = {row.kind for row in keyed}, {row.key for row in keyed}
    live = Message.objects.using(store.alias).filter(kind__in=kinds, key__in=keys)
    taken = set(live.values_list("kind", "key"))
    return [row for row in keyed if (row.kind, row.key) in taken]


def _record(row: FinishedMessage, revival: Revival) -> Record:
    before: dict[str, Any] = {name: getattr(row, name) for name in LEFT_BEHIND} | {"outcome": Outcome.FAILED}
    before |= {name: before[name] and before[name].isoformat() for name in _TIMES}
    assert revival.scheduled_at is not None
    after = {"scheduled_at": revival.scheduled_at.isoformat(), "queue": row.queue, "priority": row.priority}
    return Record(row.pk, 0, before, after | {"attempt": 0})


# Discard: dead letters leave the list of dead letters. The history keeps them as cancelled for RETENTION.
#
# Until they are pruned, an undo makes them dead letters again.


#: As it stands in `Edit.action`.
DISCARD = gettext_noop("discard")


def discard(
    store: Store,
    edit: Edit,
    chosen: Sequence[int] | AllDead,
    as_of: datetime,
    after: int = 0,
    most: int | None = None,
) -> EditProgress:
    """Discard dead letters, at most CHUNKS chunks in one call. The arguments are those of `redrive`."""
    do = partial(_discard, store, edit, as_of)
    if isinstance(chosen, AllDead):
        return by_position(store, edit, chosen, do, after, most)
    return carry_out(store, edit, map(list, batched(chosen, CHUNK)), do, most)


def _discard(store: Store, edit: Edit, as_of: datetime, ids: list[int]) -> Write:
    def write() -> Done:
        left = set(ids) - edited_since(store, edit, ids, as_of)
        discarded = operator_store(store.alias).relabel(left, Outcome.FAILED, Outcome.CANCELLED)
        before, after = {"outcome": Outcome.FAILED.value}, {"outcome": Outcome.CANCELLED.value}
        records = [Record(id_, 0, before, after) for id_ in ids if id_ in discarded]
        return Done(records, +Counter({ENDED: len(ids) - len(records)}))

    return write
