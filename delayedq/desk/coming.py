"""When a worker looks at the message of an open item again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.desk.declaring import Desk
    from delayedq.desk.models import Item

#: A message whose item is open is visited at least this often, counted from when the item was opened: so a time says
#: whether it is that of a visit (`is_visit`).
VISIT = timedelta(days=1)


def next_visit(item: Item, desk: Desk, now: datetime) -> datetime:
    """When something is due next, or a day is over."""
    due = [moment for moment in _due(item, desk) if moment > now]
    return min(due, default=item.opened_at + VISIT * ((now - item.opened_at) // VISIT + 1))


def is_visit(item: Item, desk: Desk, moment: datetime) -> bool:
    """Whether it is a time that the desk chooses; others are those of who submitted it, a backoff, or an operator."""
    return moment in _due(item, desk) or (moment > item.opened_at and not (moment - item.opened_at) % VISIT)


def _due(item: Item, desk: Desk) -> list[datetime]:
    return [] if item.due_at is None else [item.due_at - desk.warn_before, item.due_at]
