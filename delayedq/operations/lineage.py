"""Where a message comes from, and what it has made: what its task enqueued, and what follows its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.metadata import PARENT, ROOT, own
from delayedq.models import FinishedMessage, Message
from delayedq.store.lineage import made_by

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.store.base import Store


class MadeMessage(NamedTuple):
    """A message that another one has made. `outcome`: how it ended; None if it lives."""

    id: int
    kind: str
    created_at: datetime
    outcome: str | None = None


def parent_of(message: Message | FinishedMessage) -> int | None:
    """The id of the message that has made this one."""
    return _id(message, PARENT)


def root_of(message: Message | FinishedMessage) -> int | None:
    """The id of the first message of that line; None if it has no parent."""
    return _id(message, ROOT)


def made(store: Store, message: Message | FinishedMessage, limit: int = 100) -> list[MadeMessage]:
    """What this message has made, the oldest first: at most `limit` of the live, and of the ended ones."""
    found = made_by(store.database, message.pk, limit)
    live = Message.objects.using(store.alias).filter(id__in=found.live)
    ended = FinishedMessage.objects.using(store.alias).filter(id__in=found.ended)
    names = ("id", "kind", "created_at")
    rows = [MadeMessage(*row) for row in live.values_list(*names)] if found.live else []
    rows += [MadeMessage(*row) for row in ended.values_list(*names, "outcome")] if found.ended else []
    return sorted(rows)


def _id(message: Message | FinishedMessage, name: str) -> int | None:
    try:
        id_ = own(message.metadata, name)
    except (ValueError, RecursionError, AttributeError):  # other code has written something else into the column
        return None
    return id_ if isinstance(id_, int) else None
