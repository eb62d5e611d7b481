"""Pause a queue, a task, or all queues: workers claim nothing of it until it is resumed; running messages finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.db import transaction
from django.db.models import Value

from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedQueue, PausedTask
from delayedq.operations.reading import read_once
from delayedq.store import default_store
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from delayedq.store.base import Store


class Paused(NamedTuple):
    """What workers do not claim from: queues, and the paths of tasks."""

    queues: frozenset[str]
    kinds: frozenset[str]

    def has(self, queue: str, kind: str) -> bool:
        return queue in self.queues or kind in self.kinds


def paused_now(store: Store) -> Paused:
    """What is paused at this moment; one statement."""
    queues = PausedQueue.objects.using(store.alias).values_list(Value(0), "queue")
    both = queues.union(PausedTask.objects.using(store.alias).values_list(Value(1), "kind"), all=True)
    found = set(read_once(store, "paused", lambda: list(both)))
    return Paused(*(frozenset(name for is_task, name in found if is_task == which) for which in (0, 1)))


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


def pause_task(kind: str, by: str = "", store: Store | None = None) -> bool:
    """Stop workers from claiming messages of this task, from the commit on; False if it was already paused.

    `kind`: the path of the task. `by`, `store`: as for `pause`. Raises InvalidQueue for what is no path of a task.
    """
    if not kind.strip() or len(kind) > NAME_LENGTH or not is_storable(kind) or BARE in kind:
        raise InvalidQueue(f"A task is paused by its path, of 1 to {NAME_LENGTH} characters, not by {kind!r}.")
    store = store or default_store()
    fields = {"paused_at": store.now(), "paused_by": by}
    _, paused = PausedTask.objects.using(store.alias).get_or_create(kind=kind, defaults=fields)
    return paused


def resume_task(kind: str, store: Store | None = None) -> bool:
    """Let workers claim messages of this task again; False if it was not paused."""
    store = store or default_store()
    if not is_storable(kind):
        return False
    resumed, _ = PausedTask.objects.using(store.alias).filter(kind=kind).delete()
    if resumed:
        store.notify_after_commit()
    return bool(resumed)


def known_queues(store: Store) -> set[str]:
    """The queues of tasks: those that have messages or are paused, and those of the registered tasks."""
    names = {lane.queue for lane in store.lanes()} | store.paused()
    return {name for name in names | {str(task.queue_name) for task in registered.values()} if is_pausable(name)}


def pause_all(by: str = "", store: Store | None = None) -> list[str]:
    """Pause all queues that are known now, all or none; returns those that were not paused yet."""
    store = store or default_store()
    with transaction.atomic(using=store.alias):
        return [queue for queue in sorted(known_queues(store)) if pause(queue, by, store)]


def resume_all(store: Store | None = None) -> list[str]:
    """Resume all queues, also those that were paused one by one; returns their names. Paused tasks stay paused."""
    store = store or default_store()
    with transaction.atomic(using=store.alias):
        return [queue for queue in sorted(store.paused()) if resume(queue, store)]


def is_pausable(queue: str) -> bool:
    """Whether workers serve the queue. Bare queues are polled by the application's own code."""
    return BARE not in queue


def check_name(queue: str) -> None:
    """Raises InvalidQueue for what can't be paused."""
    if not queue.strip() or len(queue) > NAME_LENGTH or not is_storable(queue):
        raise InvalidQueue(f"The name of a queue has 1 to {NAME_LENGTH} characters, and no NUL.")
    if not is_pausable(queue):
        raise InvalidQueue(f"{queue!r} is a bare queue: no worker serves it, so there is nothing to pause.")
