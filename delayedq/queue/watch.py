"""Waiting for a wake-up: by offers of this process or of others, or by the end of the queue."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from django.db import transaction

from delayedq.store.database import NOTIFY_WAIT, WakeUpPipe

if TYPE_CHECKING:
    from delayedq.store.base import Store
    from delayedq.store.database import Listener

_watching: defaultdict[tuple[str, str], set[Watch]] = defaultdict(set)
#: Reentrant, as a signal handler may close a queue while its thread holds it. Held during fork, so that a child never
#: inherits it locked.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def ring(alias: str, queue: str) -> None:
    """Wake all threads of this process that wait for a message of the queue."""
    with _lock:
        for watch in _watching.get((alias, queue), ()):
            watch.wake()


def ring_after_commit(alias: str, queue: str) -> None:
    """`ring` when the transaction of the caller commits, or at once if there is none."""
    with suppress(transaction.TransactionManagementError):  # autocommit is off: consumers find it by polling
        transaction.on_commit(lambda: ring(alias, queue), using=alias, robust=True)


class Watch:
    """One thread waits in it; any thread may wake it. `listen` opens a connection of its own, for the listener."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._place = store.alias, queue
        self._listener: Listener | None = None
        self._heard = False

    def __enter__(self) -> Self:
        self._pipe = WakeUpPipe()
        with _lock:
            _watching[self._place].add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _watching[self._place].discard(self)
            if not _watching[self._place]:
                del _watching[self._place]
            self._pipe.close()
        if self._listener is not None:
            self._listener.close()

    def wake(self) -> None:
        """End the current wait, or the next one if there is none at the moment."""
        self._pipe.wake()

    def listen(self) -> None:
        """Start listening, if it has not started. Earlier offers are not heard."""
        if self._listener is None:
            self._listener = self._store.listener()

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until woken or an offer is heard. Raises django.db.Error for a lost connection."""
        assert self._listener is not None, "It listens before it waits."
        wake_at = time.monotonic() + (min(seconds, NOTIFY_WAIT) if self._heard else seconds)
        self._heard = False
        while (left := wake_at - time.monotonic()) > 0 and not self._pipe.wait(left, self._listener):
            if self._listener.heard():
                self._heard = True
                return
