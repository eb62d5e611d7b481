"""Waiting for a message without missing one: offers of this process, of others, and the end of the queue."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from django.db import transaction

from delayedq.store.base import NOTIFY_GAP

if TYPE_CHECKING:
    from delayedq.store.protocol import Listener, Store

#: Offers that follow one another closely send one wake-up: after hearing it, look again so many seconds later.
ATTEND = 2 * NOTIFY_GAP

_watching: defaultdict[tuple[str, str], set[Watch]] = defaultdict(set)
#: A signal handler may close a queue while its thread is in here; and no child may be forked with it locked.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def ring(alias: str, queue: str) -> None:
    """Wake everybody in this process who waits for a message of the queue."""
    with _lock:
        for watch in _watching.get((alias, queue), ()):
            watch.wake()


def ring_after_commit(alias: str, queue: str) -> None:
    with suppress(transaction.TransactionManagementError):  # autocommit is off: they will look by themselves
        transaction.on_commit(lambda: ring(alias, queue), using=alias, robust=True)


class Watch:
    """One thread waits in it, anybody wakes it. It opens a connection when it begins to listen, for the listener."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._place = store.alias, queue
        self._listener: Listener | None = None
        self._heard = False

    def __enter__(self) -> Self:
        self._woken_fd, self._wake_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        with _lock:
            _watching[self._place].add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _watching[self._place].discard(self)
            if not _watching[self._place]:
                del _watching[self._place]
            os.close(self._woken_fd)
            os.close(self._wake_fd)
        if self._listener is not None:
            self._listener.close()

    def wake(self) -> None:
        """Wake-ups between two waits end the next one at once."""
        with suppress(BlockingIOError):  # it has not read the last ones yet
            os.write(self._wake_fd, b".")

    def listen(self) -> None:
        """Begin to listen, if it does not yet. What was offered before is not heard."""
        if self._listener is None:
            self._listener = self._store.listener()

    def wait(self, seconds: float) -> None:
        """Sleep until woken, or until the listener hears something. Raises django.db.Error if it is cut off."""
        assert self._listener is not None, "It listens before it waits."
        wake_at = time.monotonic() + (min(seconds, ATTEND) if self._heard else seconds)
        self._heard = False
        while (left := wake_at - time.monotonic()) > 0 and not self._woken(self._listener, left):
            if self._listener.heard():
                self._heard = True
                return

    def _woken(self, listener: Listener, seconds: float) -> bool:
        watched = select.poll()  # unlike select(), it takes descriptors of any number
        watched.register(self._woken_fd, select.POLLIN)
        if listener.interval is None:
            watched.register(listener.fileno(), select.POLLIN)
        else:
            seconds = min(seconds, listener.interval)
        woken = any(descriptor == self._woken_fd for descriptor, _ in watched.poll(min(seconds, 3600) * 1000))
        if woken:
            os.read(self._woken_fd, 4096)
        return woken
