"""Pause a queue: workers claim nothing from it until it is resumed; running messages finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.core.limits import NAME_LENGTH, is_storable
from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedQueue
from delayedq.store import default_store
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.store.base import Store


def pause(queue: str, by: str = "", store: Store | None = None) -> bool:
    """Stop workers from claiming from this queue, from the commit on; False if it was already paused.

    `by`: the name of a user, for display. `store`: where the queue is; None: the default one. Raises InvalidQueue
    for a bare queue and for a name of the wrong length.
    """
    check_name(queue)
    store = store or default_store()
    fields = {"paused_at": store.now(), "paused_by": by}
    _, paused = PausedQueue.objects.using(store.alias).get_or_create(queue=queue, defaults=fields)
    if paused:
        store.notify_after_commit()
    return paused


def resume(queue: str, store: Store | None = None) -> bool:
    """Let workers claim from this queue again, from the commit on; False if it was not paused. `store`: as above."""
    store = store or default_store()
    resumed, _ = PausedQueue.objects.using(store.alias).filter(queue=queue).delete()
    if resumed:
        store.notify_after_commit()
    return bool(resumed)


def is_pausable(queue: str) -> bool:
    """Whether workers serve the queue. Bare queues are polled by the application's own code."""
    return BARE not in queue


def check_name(queue: str) -> None:
    """Raises InvalidQueue for what can't be paused."""
    if not queue.strip() or len(queue) > NAME_LENGTH or not is_storable(queue):
        raise InvalidQueue(f"The name of a queue has 1 to {NAME_LENGTH} characters, and no NUL.")
    if not is_pausable(queue):
        raise InvalidQueue(f"{queue!r} is a bare queue: no worker serves it, so there is nothing to pause.")
