"""Progress in the database: one statement for all that several messages have reported."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.core.progress import Progress
from delayedq.store.sweeps import PAGE, Swept, forget_gone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayedq.store.base import Store

_REPORTED = ("done", "total", "note", "began_at", "written_at")
#: What nobody has reported again for this long may go with its message.
OLD = timedelta(hours=1)


def write_progress(store: Store, reported: Mapping[int, Progress]) -> None:
    """Store what these messages (by id) have reported. Raises django.db.Error."""
    from delayedq.models import MessageProgress  # stores are imported before the models are loaded

    rows = [MessageProgress(message_id=id_, **reported[id_]._asdict()) for id_ in sorted(reported)]
    unique = store.database.conflict("message_id")
    MessageProgress.objects.using(store.alias).bulk_create(
        rows, update_conflicts=True, update_fields=_REPORTED, unique_fields=unique, batch_size=100
    )


def read_progress(store: Store, id_: int) -> Progress | None:
    """None if the message has reported nothing."""
    from delayedq.models import MessageProgress

    row = MessageProgress.objects.using(store.alias).filter(message_id=id_).values_list(*_REPORTED).first()
    return None if row is None else Progress(*row)


def forget_progress(store: Store, after: int | None = None, limit: int = PAGE) -> Swept:
    """Delete that of messages that are neither live nor in the history, of the next rows after this one."""
    from delayedq.models import MessageProgress

    return forget_gone(store, MessageProgress.objects.using(store.alias), "written_at", OLD, after, limit)
