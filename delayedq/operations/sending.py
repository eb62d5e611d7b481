"""Send a message of a registered task by hand, recorded as an edit: undo cancels it while no attempt has begun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.utils.translation import gettext_noop

from delayedq.exceptions import InvalidMessage, QueueFull
from delayedq.models import EditedMessage, Message
from delayedq.operations.arguments import call_with
from delayedq.operations.edits import begin, place_of
from delayedq.store.operator import Seen
from delayedq.store.protocol import OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.models import Edit
    from delayedq.store.base import Store
    from delayedq.tasks import Task

#: As it stands in `Edit.action`.
SEND = gettext_noop("send")


class Sending(NamedTuple):
    """What to send. `arguments`: JSON values by name. `at` None: now. The rest None: as the task says."""

    task: Task[..., Any]
    arguments: Mapping[str, Any]
    at: datetime | None = None
    key: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None


class Sent(NamedTuple):
    id: int
    edit: Edit


def is_sendable(task: Task[..., Any], store: Store) -> bool:
    """Whether its backend stores messages in this database."""
    backend_store: Store | None = getattr(task.get_backend(), "store", None)
    return backend_store is not None and backend_store.alias == store.alias


def send(store: Store, sending: Sending, made_by: str = "") -> Sent:
    """Store the message, by the backend of its task. Raises what `Task.schedule_at` raises, and CannotRun.

    Raises InvalidMessage for a key that a live message has, and for a task of another database.
    """
    task = sending.task.using(queue_name=sending.queue, priority=sending.priority, max_attempts=sending.max_attempts)
    if not is_sendable(task, store):
        raise InvalidMessage(f"The messages of {task.name} are not in this database.")
    args, kwargs = call_with(task, sending.arguments)
    with transaction.atomic(using=store.alias):
        scheduled = task.schedule_at(
            sending.at or store.now(), *args, key=sending.key, on_conflict=OnConflict.KEEP, **kwargs
        )
        if scheduled.outcome is OfferOutcome.DROPPED:
            raise QueueFull(f"A limit of {task.name} has reached its size: nothing was stored.")
        if scheduled.outcome is not OfferOutcome.CREATED or scheduled.id is None:
            raise InvalidMessage(f"A live message of this task has the key {sending.key!r}.")
        return Sent(int(scheduled.id), _recorded(store, int(scheduled.id), made_by))


def _recorded(store: Store, id_: int, made_by: str) -> Edit:
    message = Message.objects.using(store.alias).get(id=id_)
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    edit = begin(store, SEND, f"Send {message}", made_by)
    after = json.dumps(place_of(seen) | {"attempt": 0})
    EditedMessage.objects.using(store.alias).create(
        edit=edit, message_id=id_, generation=seen.generation, before=json.dumps({}), after=after
    )
    edit.changed = 1
    edit.save(using=store.alias, update_fields=["changed"])
    return edit
