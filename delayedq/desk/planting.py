"""Cases whose right answer is known: who decides one does not see that it is one, and all are measured by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq.core.serialization import dumps
from delayedq.desk import closing
from delayedq.desk.models import UNOPENED, Item, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plant(task: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, answer: Any) -> Any:
    """Enqueue a message of a desk task whose right answer is known; returns its TaskResult.

    A person decides its item, in each mode, and so does the handler if the mode calls it; both are compared with the
    answer. The decision ends the message and does nothing else: no review, no `on_finish`, no `on_success`. With a
    form, the answer is its data. Raises InvalidDecision for one that the form refuses.
    """
    desk = closing.desk_of(task)
    truth = dumps(closing.checked(desk, answer), where="the answer")
    store = task.get_backend().store
    with transaction.atomic(using=store.alias):
        result = task.enqueue(*args, **(kwargs or {}))
        # Not opened: the visit of a worker takes this row, and nobody may take it before.
        Item.objects.using(store.alias).create(
            message_id=int(result.id), generation=UNOPENED, queue=task.queue_name, kind=task.module_path,
            state=State.POSTPONED, is_open=False, opened_at=store.now(), mode=desk.mode, truth=truth,
        )  # fmt: skip
    return result
