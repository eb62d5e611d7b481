"""Pausing a queue: workers claim nothing from it until it is resumed, and finish what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.core.limits import NAME_LENGTH
from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedQueue
from delayedq.store import default_store
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.store.protocol import Store


def pause(queue: str, by: str = "") -> bool:
    """Let workers claim nothing from this queue, from the commit on; False if it was paused before.

    `by` is the name of a user. Raises InvalidQueue for a name that no queue of tasks has.
    """
    _check(queue)
    store = default_store()
    fields = {"paused_at": store.now(), "paused_by": by}
    _, paused = PausedQueue.objects.using(store.alias).get_or_create(queue=queue, defaults=fields)
    if paused:
        _wake(store)
    return paused


def resume(queue: str) -> bool:
    """Let workers go on with this queue; False if it was not paused."""
    store = default_store()
    resumed, _ = PausedQueue.objects.using(store.alias).filter(queue=queue).delete()
    if resumed:
        _wake(store)
    return bool(resumed)


def is_pausable(queue: str) -> bool:
    """Do workers serve it? Bare queues are polled by code that asks for them."""
    return BARE not in queue


def _check(queue: str) -> None:
    if not queue.strip() or len(queue) > NAME_LENGTH:
        raise InvalidQueue(f"The name of a queue has 1 to {NAME_LENGTH} characters.")
    if not is_pausable(queue):
        raise InvalidQueue(f"{queue!r} is a bare queue: no worker serves it, so there is nothing to pause.")


def _wake(store: Store) -> None:
    transaction.on_commit(store.notify, using=store.alias, robust=True)
