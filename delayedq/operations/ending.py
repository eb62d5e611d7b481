"""End a message that no worker holds with a result: what was waited for has come from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.conf import get_settings
from delayedq.core.lifecycle import FinalOutcome
from delayedq.core.limits import NAME_LENGTH
from delayedq.store.protocol import Finish
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer


def end_waiting(
    store: Store,
    message_id: int,
    generation: int,
    *,
    result: str | None,
    by: str,
    seconds: float = 0.0,
    follow_ups: Sequence[Offer] = (),
) -> bool:
    """End the message as succeeded, due or not, in the caller's transaction; False if it has changed nothing.

    That is so if a worker holds it, if another transaction has locked it, if it was replaced since (`generation`), or
    if it has ended. `result` is the JSON of its result, `by` the name that the history has for its worker, `seconds`
    how long the work took. `follow_ups` are offered with it.
    """
    with transaction.atomic(using=store.alias):
        claimed = store.claim_unchanged(message_id, generation, get_settings().LEASE, by[:NAME_LENGTH])
        if claimed is None:
            return False
        task = registered.get(claimed.kind)
        kept = None if task is None else task.result_retention
        end = Finish(claimed, FinalOutcome.SUCCEEDED, seconds, 0.0, result, None, tuple(follow_ups), kept)
        settled = store.settle([end], by[:NAME_LENGTH])
        transaction.on_commit(store.tell_ends, using=store.alias, robust=True)
    return not (settled.lost or settled.busy or settled.superseded)
