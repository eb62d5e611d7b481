"""When a worker looks at the message of an open item again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delayedq.core.metadata import shortest_deadline
from delayedq.core.ticks import later

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.desk.models import Item
    from delayedq.desk.options import Desk
    from delayedq.models import Message
    from delayedq.store.protocol import Claimed
    from delayedq.tasks import Task

#: A message whose item is open is visited at least this often, counted from when the item was opened: so a time says
#: whether it is that of a visit (`is_visit`).
VISIT = timedelta(days=1)
#: When a worker comes again where the clock of its host is behind that of the database, by which a deadline is over.
SOON = timedelta(seconds=1)


def next_visit(item: Item, desk: Desk, now: datetime, deadline_at: datetime | None = None) -> datetime:
    """When something is due next, or a day is over, or the deadline of the message: then a worker ends it."""
    due = [moment for moment in _due(item, desk) if moment > now]
    visit = min(due, default=item.opened_at + VISIT * ((now - item.opened_at) // VISIT + 1))
    return visit if deadline_at is None else min(visit, max(deadline_at, now + SOON))


def deadline_of(message: Message | Claimed, task: Task[..., Any] | None) -> datetime | None:
    """When the message ends, if nobody has decided it."""
    deadline = shortest_deadline(message.metadata, None if task is None else task.deadline)
    return None if deadline is None else later(message.scheduled_at_initially, deadline)


def is_visit(item: Item, desk: Desk, moment: datetime) -> bool:
    """Whether it is a time that the desk chooses; others are those of who submitted it, a backoff, or an operator."""
    return moment in _due(item, desk) or (moment > item.opened_at and not (moment - item.opened_at) % VISIT)


def _due(item: Item, desk: Desk) -> list[datetime]:
    return [] if item.due_at is None else [item.due_at - desk.warn_before, item.due_at]
