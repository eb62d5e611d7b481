"""The databases that have the messages of the project's backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.backend import DelayedQBackend
from delayedq.compat import task_backends
from delayedq.store import default_store

if TYPE_CHECKING:
    from delayedq.store.base import Store


def all_databases() -> list[Store]:
    """The stores of all backends of TASKS that are delayedq's, each once; without one, that of the bare queues.

    Raises InvalidTaskBackend for a backend of TASKS that can't be made.
    """
    backends = (task_backends[name] for name in task_backends)
    found = {ours.store.alias: ours.store for ours in backends if isinstance(ours, DelayedQBackend)}
    return list(found.values()) or [default_store()]
