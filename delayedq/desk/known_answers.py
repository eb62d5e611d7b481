"""Cases whose right answer is known: who decides one does not see that it is one, and all are measured by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq.core.serialization import dumps
from delayedq.desk import ends
from delayedq.desk.errors import DeskError
from delayedq.desk.models import UNOPENED, Item, State
from delayedq.models import Message
from delayedq.store.protocol import OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plant(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    answer: Any,
    key: str | None = None,
) -> Any:
    """Submit a message of a desk task whose right answer is known; returns its TaskResult.

    A person decides its item, in each mode, and so does the handler if the mode calls it; both are compared with the
    answer. The decision ends the message and does nothing else: no review, no `on_finish`, no `on_success`. With a
    form, the answer is its data. Raises InvalidDecision for one that the form refuses.

    With a key there is one such case at a time: while it is open, it stays as it is, and its result is returned.
    Raises DeskError if the message with that key is no planted case, or if it was dropped for want of room.
    """
    desk, backend = ends.desk_of(task), task.get_backend()
    truth = dumps(ends.checked(desk, answer), where="the answer")
    store = backend.store
    with transaction.atomic(using=store.alias):
        scheduled = backend.schedule(task, args, kwargs or {}, task.run_after or store.now(), key, OnConflict.KEEP)
        if scheduled.outcome is OfferOutcome.CREATED:
            # Not opened: the visit of a worker takes this row, and nobody may take it before.
            Item.objects.using(store.alias).create(
                message_id=int(scheduled.id), generation=UNOPENED, queue=task.queue_name, kind=task.module_path,
                key=key, state=State.POSTPONED, is_open=False, opened_at=store.now(), mode=desk.mode, truth=truth,
            )  # fmt: skip
        elif scheduled.id is None:
            raise DeskError(f"No case of {task.name} was planted: its limit has no room, or the last one just ended.")
        elif not _is_planted(scheduled.id, store.alias):
            raise DeskError(
                f"No case was planted: the message of {task.name} with the key {key!r} is not a planted case."
            )
        return backend.get_result(scheduled.id)


def _is_planted(message_id: str, alias: str) -> bool:
    """Not if its message was replaced since by one of the business."""
    message = Message.objects.using(alias).filter(pk=message_id, generation=0)
    return message.exists() and Item.objects.using(alias).filter(message_id=message_id, truth__isnull=False).exists()
