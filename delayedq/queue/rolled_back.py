"""Notice that a write in the caller's transaction was rolled back, with it or with one of its savepoints."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from django.db import connections, transaction

if TYPE_CHECKING:
    from collections.abc import Callable


def stands() -> bool:
    """It was written outside of transactions."""
    return True


def until_undone(alias: str) -> Callable[[], bool]:
    """Return a function that says whether what this thread has just written still stands, committed or not.

    Django forgets the on_commit callbacks of what is rolled back: one of them is the mark. Outside of a transaction
    nothing is registered.
    """
    connection = connections[alias]
    if not connection.in_atomic_block:
        return stands
    committed = Event()
    mark = committed.set
    transaction.on_commit(mark, using=alias, robust=True)
    return lambda: committed.is_set() or any(callback is mark for _, callback, *_ in connection.run_on_commit)
