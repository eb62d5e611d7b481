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
    from collections.abc import Callable, Sequence

    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, Offer


def end_waiting(
    store: Store,
    message_id: int,
    generation: int,
    *,
    result: str | None,
    by: str,
    seconds: float = 0.0,
    follow_ups: Sequence[Offer] = (),
    is_meant: Callable[[Claimed], bool] | None = None,
) -> bool:
    """End the message as succeeded, due or not, in the caller's transaction; False if it has changed nothing.

    That is so if a worker holds it, if another transaction has locked it, if it was replaced since (`generation`), or
    if it has ended. `result` is the JSON of its result, `by` the name that the history has for its worker, `seconds`
    how long the work took. `follow_ups` are offered with it. `is_meant` is asked of the message once nobody else can
    change it: False keeps it as it is.
    """
    with transaction.atomic(using=store.alias):
        claimed = store.claim_unchanged(message_id, generation, get_settings().LEASE, by[:NAME_LENGTH])
        if claimed is None:
            return False
        if is_meant is not None and not is_meant(claimed):
            transaction.set_rollback(True, using=store.alias)
            return False
        task = registered.get(claimed.kind)
        kept = None if task is None else task.result_retention
        end = Finish(claimed, FinalOutcome.SUCCEEDED, seconds, 0.0, result, None, tuple(follow_ups), kept)
        settled = store.settle([end], by[:NAME_LENGTH])
        transaction.on_commit(store.tell_ends, using=store.alias, robust=True)
    return not (settled.lost or settled.busy or settled.superseded)
