"""What operators do besides edits of messages, recorded beside those: who did it, when and why.

Pauses and resumes of queues and tasks can be undone; of the rest there is only the record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.models import Edit, EditedMessage
from delayedq.operations.edits import ACT, PAUSE, begin
from delayedq.operations.pauses import pause, pause_all, pause_task, paused_now, resume, resume_all, resume_task
from delayedq.store.database import retry_on_deadlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.base import Store

#: What is paused, in a record.
QUEUE, TASK = "queue", "task"


def note(store: Store, description: str, by: str = "", why: str = "") -> Edit:
    """Record something that has no undo. `by`: the name of a user; "": a command."""
    return begin(store, ACT, description, by, why)


@retry_on_deadlock
def pause_queues(store: Store, names: Sequence[str] | None = None, by: str = "", why: str = "") -> list[str]:
    """Pause these queues (None: all that are known now), all or none; returns those that were not paused yet.

    Raises InvalidQueue.
    """
    with transaction.atomic(using=store.alias):
        done = pause_all(by, store) if names is None else [name for name in sorted(names) if pause(name, by, store)]
        _record(store, QUEUE, done, by, why, is_paused=True)
    return done


@retry_on_deadlock
def resume_queues(store: Store, names: Sequence[str] | None = None, by: str = "", why: str = "") -> list[str]:
    """Resume these queues (None: all that are paused); returns those that were paused."""
    with transaction.atomic(using=store.alias):
        done = resume_all(store) if names is None else [name for name in sorted(names) if resume(name, store)]
        _record(store, QUEUE, done, by, why, is_paused=False)
    return done


@retry_on_deadlock
def pause_one_task(store: Store, kind: str, by: str = "", why: str = "") -> bool:
    """False if it was already paused. Raises InvalidQueue for what is no path of a task."""
    with transaction.atomic(using=store.alias):
        did = pause_task(kind, by, store)
        _record(store, TASK, [kind] if did else [], by, why, is_paused=True)
    return did


@retry_on_deadlock
def resume_one_task(store: Store, kind: str, by: str = "", why: str = "") -> bool:
    """False if it was not paused."""
    with transaction.atomic(using=store.alias):
        did = resume_task(kind, store)
        _record(store, TASK, [kind] if did else [], by, why, is_paused=False)
    return did


def _record(store: Store, what: str, names: Sequence[str], by: str, why: str, *, is_paused: bool) -> None:
    if not names:
        return
    verb, noun = "Pause" if is_paused else "Resume", what if len(names) == 1 else f"{len(names)} {what}s:"
    edit = begin(store, PAUSE, f"{verb} {noun} {', '.join(names)}", by, why)
    EditedMessage.objects.using(store.alias).bulk_create(
        _record_of(edit, number, {what: name}, is_paused=is_paused) for number, name in enumerate(names)
    )
    edit.changed = len(names)
    edit.save(using=store.alias, update_fields=["changed"])


def _record_of(edit: Edit, number: int, of: dict[str, str], *, is_paused: bool) -> EditedMessage:
    before, after = (json.dumps({**of, "paused": paused}) for paused in (not is_paused, is_paused))
    return EditedMessage(edit=edit, message_id=-1 - number, generation=0, before=before, after=after)  # of no message


def undo_pauses(store: Store, records: Sequence[EditedMessage], by: str = "") -> set[int]:
    """Pause again what was resumed, and the reverse, if it still is as it was left; returns the numbers of those.

    by: the name of the user who undoes it.
    """
    now, undone = paused_now(store), set()
    for record in records:
        left = json.loads(record.after)
        what = QUEUE if QUEUE in left else TASK
        name, is_paused = left[what], left["paused"]
        known = now.queues if what == QUEUE else now.kinds
        if (name in known) is is_paused and _turn(store, what, name, by, to_paused=not is_paused):
            undone.add(record.message_id)
    return undone


def _turn(store: Store, what: str, name: str, by: str, *, to_paused: bool) -> bool:
    if what == QUEUE:
        return pause(name, by, store) if to_paused else resume(name, store)
    return pause_task(name, by, store) if to_paused else resume_task(name, store)
