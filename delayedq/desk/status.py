"""Tell who has submitted a message about its item: where it stands, and not who has it or why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.desk.models import ENDING, HELD, Item, State
from delayedq.store import store_for
from delayedq.store.progress import read_progress

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.core.progress import Progress


class Status(NamedTuple):
    """Where an item stands at this moment.

    state: `rejected back` counts as assigned. due_at: when it is due. until: when a postponed one waits again.
    progress: what its holder has reported.
    """

    state: State
    opened_at: datetime
    due_at: datetime | None
    until: datetime | None
    progress: Progress | None


def status_of(result: Any) -> Status | None:
    """The status of the item of this TaskResult (or id of a message); None before a worker has opened it."""
    message_id = int(getattr(result, "id", result))
    item = Item.objects.filter(message_id=message_id, generation__gte=0).first()
    if item is None:
        return None
    store = store_for(item._state.db or "default")  # noqa: SLF001 - Django's documented API
    state, until = State(item.state), None
    if state in ENDING and item.until is not None and item.until <= store.now():
        state = State.WAITING
    elif state in HELD:
        state = State.ASSIGNED
    elif state is State.POSTPONED:
        until = item.until
    return Status(state, item.opened_at, item.due_at, until, read_progress(store, message_id))
