"""Ask a running task to stop: its message ends as cancelled, and its attempt loses its lease.

Nothing runs the message again. The attempt is told soon on PostgreSQL, elsewhere when its lease is to be renewed, at
most a third of LEASE later: an async task is cancelled then, and so is a sync one that is `interruptible`;
`current_message().cancelled` becomes True in any other, which runs on until it looks.
What the attempt returns is refused. There is no undo: the attempt may still run, and a second one would run beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils.translation import gettext_noop

from delayedq.models import EditedMessage, Message
from delayedq.operations.edits import begin, place_of
from delayedq.store import operator_store
from delayedq.store.operator import Seen

if TYPE_CHECKING:
    from delayedq.models import Edit
    from delayedq.store.base import Store

#: As it stands in `Edit.action`.
STOP = gettext_noop("stop")


def stop(store: Store, message: Message, made_by: str = "") -> Edit | None:
    """End a running message as cancelled; None if no worker holds it, or it changed since `message` was read."""
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    with transaction.atomic(using=store.alias):
        if not operator_store(store.alias).stop([seen]):
            return None
        edit = begin(store, STOP, f"Stop {message}", made_by)
        EditedMessage.objects.using(store.alias).create(
            edit=edit,
            message_id=message.pk,
            generation=seen.generation,
            before=json.dumps(place_of(seen) | {"attempt": seen.attempt}),
            after=json.dumps({"outcome": "cancelled"}),
        )
        edit.changed = 1
        edit.save(using=store.alias, update_fields=["changed"])
        store.tell_stopped_after_commit()
    return edit
