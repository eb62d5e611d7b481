"""Discard: dead letters leave the list of dead letters. The history keeps them as cancelled for RETENTION.

Until they are pruned, an undo makes them dead letters again.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING

from django.utils.translation import gettext_noop

from delayedq.models import Outcome
from delayedq.operations.edits import ENDED, Done, Progress, Record, carry_out, edited_since
from delayedq.operations.redrive import AllDead, by_position
from delayedq.operations.selecting import CHUNK
from delayedq.store import operator_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.models import Edit
    from delayedq.operations.edits import Write
    from delayedq.store.base import Store

#: As it stands in `Edit.action`.
DISCARD = gettext_noop("discard")


def discard(
    store: Store,
    edit: Edit,
    chosen: Sequence[int] | AllDead,
    as_of: datetime,
    after: int = 0,
    most: int | None = None,
) -> Progress:
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
