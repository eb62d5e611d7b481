"""Changes of schedules by an operator, recorded as edits with the state before and after, for an undo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.translation import gettext_noop

from delayedq import schedules
from delayedq.core.serialization import dumps, loads
from delayedq.cron.beat import SETTINGS
from delayedq.models import CronSchedule, Edit, EditedMessage
from delayedq.operations.edits import begin
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delayedq.store.base import Store

#: As it stands in `Edit.action`.
SCHEDULE = gettext_noop("schedule")


def recorded[R](name: str, verb: str, change: Callable[[], R], made_by: str = "") -> R:
    """Do `change`, which is about the schedule of this name, and record it, both or neither."""
    store = default_store()
    with transaction.atomic(using=store.alias):
        before, id_ = _state(store, name, lock=True)
        result = change()
        after, new_id = _state(store, name)
        if before != after:
            edit = begin(store, SCHEDULE, f"{verb} schedule {name}", made_by)
            EditedMessage.objects.using(store.alias).create(
                edit=edit, message_id=id_ or new_id, generation=0, before=json.dumps(before), after=json.dumps(after)
            )
            Edit.objects.using(store.alias).filter(pk=edit.pk).update(changed=1)
    return result


def undo_schedules(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """Bring back what was before, for each schedule that still is as the edit left it; returns their ids."""
    return {record.message_id for record in records if _undo_one(store, json.loads(record.before), record)}


def _undo_one(store: Store, before: dict[str, Any], record: EditedMessage) -> bool:
    name = before["name"]
    now, _ = _state(store, name, lock=True)
    if now != json.loads(record.after):
        return False
    if not before["exists"]:
        return schedules.delete(name)
    if before["definition"] is not None and before["definition"] != now["definition"]:
        _restore(name, loads(before["definition"]), exists=now["exists"], enabled=not before["disabled"])
    if before["disabled"] != _state(store, name)[0]["disabled"]:
        (schedules.disable if before["disabled"] else schedules.enable)(name)
    return True


def _restore(name: str, given: dict[str, Any], *, exists: bool, enabled: bool) -> None:
    if not exists:
        schedules.create(name, **given, enabled=enabled)
        return
    others = dict.fromkeys(schedules.get(name).keys() - given.keys())
    schedules.update(name, **{**others, **given})


def _state(store: Store, name: str, *, lock: bool = False) -> tuple[dict[str, Any], int]:
    """What an undo compares and brings back; and the id of the schedule's row, 0 if there is none."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name)
    row = (rows.select_for_update() if lock else rows).first()
    definition = None if row is None or row.definition is None else dumps(loads(row.definition))
    disabled = row is not None and row.disabled_at is not None
    exists = row is not None and (row.definition is not None or disabled)
    return {"name": name, "exists": exists, "definition": definition, "disabled": disabled}, row.pk if row else 0
