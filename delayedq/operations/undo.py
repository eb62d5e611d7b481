"""Undo of an edit: each message that is still in the state the edit left it in gets back its previous values.

Messages that ran, ended, were replaced or were edited again since are left unchanged. An interrupted undo can be
repeated: messages that it already restored no longer match and are skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq.cron.operator import SCHEDULE, undo_schedules
from delayedq.models import Edit, EditedMessage, FinishedMessage, Outcome
from delayedq.operations.acts import undo_pauses
from delayedq.operations.browsing import CHUNK
from delayedq.operations.dead_letters import DISCARD
from delayedq.operations.edits import CANCEL, CHUNKS, MEANWHILE, PAUSE, RESCHEDULE, RETRY, EditProgress, seen_in
from delayedq.operations.sending import ARGUMENTS, SEND, undo_arguments
from delayedq.store import operator_store
from delayedq.store.operator import Move, Revival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from delayedq.store.base import Store


def can_undo(edit: Edit) -> bool:
    """Whether the edit changed messages and was not undone yet."""
    return edit.undone_at is None and edit.changed > 0 and edit.action in _UNDO


def undo(store: Store, edit: Edit, after: int = 0, by: str = "") -> EditProgress:
    """Undo at most CHUNKS chunks of the edit's records, beginning after record id `after`. `by`: the name of a user.

    Pass the `after` of the returned EditProgress to the next call; None means that the undo is complete.
    """
    changed, skipped, calls, last = 0, 0, 0, 0
    for records in islice(_chunks(store, edit, after), CHUNKS):
        with transaction.atomic(using=store.alias):
            take_back = partial(undo_pauses, by=by) if edit.action == PAUSE else _UNDO[edit.action]
            undone = take_back(store, records)
            EditedMessage.objects.using(store.alias).filter(edit=edit, message_id__in=undone).update(undone=True)
        changed, skipped = changed + len(undone), skipped + len(records) - len(undone)
        calls, last = calls + 1, records[-1].pk
    rest = last if calls == CHUNKS else None
    if rest is None:
        edit.undone_at, edit.undone_by = store.now(), by
        edit.save(using=store.alias, update_fields=["undone_at", "undone_by"])
    return EditProgress(changed, +Counter({MEANWHILE: skipped}), rest)


def _chunks(store: Store, edit: Edit, after: int) -> Iterator[list[EditedMessage]]:
    while True:
        records = EditedMessage.objects.using(store.alias).filter(edit=edit, id__gt=after).order_by("id")
        chunk = list(records[:CHUNK])
        if not chunk:
            return
        yield chunk
        after = chunk[-1].pk


def _move_back(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    before = [seen_in(record, record.before) for record in records]
    after = [seen_in(record, record.after) for record in records]
    moves = [Move(a, b.scheduled_at, b.queue, b.priority) for a, b in zip(after, before, strict=True)]
    return operator_store(store.alias).move(moves)


def _bring_back(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    revivals = [Revival(record.message_id) for record in records]
    return operator_store(store.alias).revive(revivals, Outcome.CANCELLED)


def _end_again(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """End the messages as cancelled, then restore their history rows to the dead letters they were.

    The rows are written anew: nobody else has seen those of this transaction, and to update many columns of many rows
    takes Django several times as long.
    """
    ended = operator_store(store.alias).cancel([seen_in(record, record.after) for record in records])
    left_behind = {record.message_id: json.loads(record.before) for record in records}
    history = FinishedMessage.objects.using(store.alias)
    rows = history.in_bulk(list(ended))
    for id_, row in rows.items():
        for name, value in _as_stored(left_behind[id_]).items():
            setattr(row, name, value)
    history.filter(id__in=rows).delete()
    history.bulk_create(rows.values(), batch_size=100)
    return ended


def _keep(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """Make discarded messages dead letters again."""
    ids = [record.message_id for record in records]
    return operator_store(store.alias).relabel(ids, Outcome.CANCELLED, Outcome.FAILED)


def _take_back(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """Cancel what was sent and has not begun."""
    return operator_store(store.alias).cancel([seen_in(record, record.after) for record in records])


def _as_stored(left_behind: dict[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value) if value and name.endswith(("_at", "_initially")) else value
        for name, value in left_behind.items()
    }


_UNDO: dict[str, Callable[[Store, Sequence[EditedMessage]], set[int]]] = {
    RESCHEDULE: _move_back,
    CANCEL: _bring_back,
    RETRY: _end_again,
    SCHEDULE: undo_schedules,
    ARGUMENTS: undo_arguments,
    DISCARD: _keep,
    SEND: _take_back,
    PAUSE: undo_pauses,
}
