"""Redrive: dead letters return to their queue, under their old ids, and start over.

What an attempt left behind (its errors, when and where it ran) moves from the history into the record of the edit. A
dead letter whose key a live message has taken meanwhile stays dead.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.core.instants import instant, microseconds
from delayedq.models import FinishedMessage, Message, Outcome
from delayedq.operations.browsing import DEPTH
from delayedq.operations.edits import (
    ENDED,
    KEY_TAKEN,
    MEANWHILE,
    Done,
    Progress,
    Record,
    Write,
    carry_out,
    edited_since,
)
from delayedq.operations.selecting import CHUNK
from delayedq.store.edits import FIRST, LAST, Position, Revival

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.core.edits import Spread
    from delayedq.models import Edit
    from delayedq.operations.selecting import EndedSelection
    from delayedq.store.protocol import Store

_TIMES = ("started_at", "finished_at", "scheduled_at", "scheduled_at_initially")
#: What the row of a dead letter holds, and its live message does not.
LEFT_BEHIND = (*_TIMES, "attempts", "errors", "worker")


@dataclass(frozen=True, slots=True)
class AllDead:
    """All dead letters of a selection that ended by a moment: what fails again later is not meant."""

    selection: EndedSelection
    by: datetime

    def chunks(self, store: Store) -> Iterator[list[Position]]:
        """From the latest to the earliest."""
        chosen = self.selection
        position: Position | None = LAST._replace(at=min(self.by, chosen.until or self.by))
        while position is not None:
            walk = store.walk_back(
                position,
                chosen.since or FIRST.at,
                CHUNK,
                DEPTH,
                outcome=Outcome.FAILED,
                queue=chosen.queue,
                kind=chosen.kind,
                key=chosen.key,
            )
            if walk.found:
                yield walk.found
            position = walk.reached


def redrive(
    store: Store, edit: Edit, chosen: Sequence[int] | AllDead, spread: Spread, as_of: datetime, after: int = 0
) -> Progress:
    """Put dead letters back into their queues, over the period that `spread` says (none: all at its start).

    `after` is the end, in microseconds since 1970, of the last one that an earlier call came to.
    """
    do = partial(_redrive, store, edit, spread, as_of)
    if not isinstance(chosen, AllDead):
        return carry_out(store, edit, map(list, batched(chosen, CHUNK)), do)
    which = replace(chosen, by=instant(after)) if after else chosen
    ends: list[datetime] = []

    def chunks() -> Iterator[list[int]]:
        for chunk in which.chunks(store):
            ends.append(chunk[-1].at)
            yield [position.id for position in chunk]

    progress = carry_out(store, edit, chunks(), do)
    return progress if progress.after is None else progress._replace(after=microseconds(ends[-1]))


def _redrive(store: Store, edit: Edit, spread: Spread, as_of: datetime, ids: list[int]) -> Write:
    failed = FinishedMessage.objects.using(store.alias).failed().defer("payload", "metadata", "result")
    dead = failed.in_bulk(list(set(ids) - edited_since(store, edit, ids, as_of)))
    revivals = [
        Revival(id_, spread.at(edit.changed + rank, random.random()))  # noqa: S311 - spreads load, guards nothing
        for rank, id_ in enumerate(dead)
    ]

    def write() -> Done:
        revived = store.revive(revivals, Outcome.FAILED)
        records = [_record(dead[one.id], one) for one in revivals if one.id in revived]
        return Done(records, +_skipped(store, ids, dead, revived))

    return write


def _skipped(store: Store, ids: list[int], dead: dict[int, FinishedMessage], revived: set[int]) -> Counter[str]:
    left = [dead[id_] for id_ in dead.keys() - revived]
    kinds = {row.kind for row in left}
    keys = {row.key for row in left if row.key is not None}
    live = Message.objects.using(store.alias).filter(kind__in=kinds, key__in=keys)
    taken = set(live.values_list("kind", "key"))
    blocked = sum((row.kind, row.key) in taken for row in left)
    return Counter({KEY_TAKEN: blocked, MEANWHILE: len(left) - blocked, ENDED: len(ids) - len(dead)})


def _record(row: FinishedMessage, revival: Revival) -> Record:
    before: dict[str, Any] = {name: getattr(row, name) for name in LEFT_BEHIND} | {"outcome": Outcome.FAILED}
    before |= {name: before[name] and before[name].isoformat() for name in _TIMES}
    assert revival.scheduled_at is not None
    after = {"scheduled_at": revival.scheduled_at.isoformat(), "queue": row.queue, "priority": row.priority}
    return Record(row.pk, 0, before, after | {"attempt": 0})
