"""The wake-up pipe: one thread waits for it and for a listener at once; threads and signal handlers wake it."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayedq.store.listener import Listener

#: A NOTIFY within 10 ms of the last is skipped; listeners check again 20 ms after the one they heard.
NOTIFY_GAP = 0.010
NOTIFY_WAIT = 2 * NOTIFY_GAP
#: Seconds that one poll() lasts at most; its argument is a C int of milliseconds.
LONGEST = 3600.0


class WakeUpPipe:
    """`wake` from anywhere ends the `wait` of the thread that owns the pipe; many wake-ups are one."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self.write_fd, False)

    def fileno(self) -> int:
        """Readable after a wake-up, for `select` and its relatives."""
        return self._read_fd

    def wake(self) -> None:
        """End the wait in progress, or the next one. Safe in a signal handler."""
        with suppress(BlockingIOError):  # full: the earlier wake-ups have not been read yet
            os.write(self.write_fd, b".")

    def clear(self) -> None:
        """Forget the wake-ups so far."""
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)

    def wait(self, seconds: float, listener: Listener | None = None) -> bool:
        """Sleep until woken, until `listener` may have something to say, or for `seconds`; says whether it was woken.

        Raises django.db.Error if the listener has lost its connection.
        """
        watched = select.poll()  # unlike select(), it takes descriptors of any number
        watched.register(self._read_fd, select.POLLIN)
        if listener is not None and listener.interval is None:
            watched.register(listener.fileno(), select.POLLIN)
        elif listener is not None and listener.interval is not None:
            seconds = min(seconds, listener.interval)
        ready = watched.poll(min(seconds, LONGEST) * 1000)
        woken = any(descriptor == self._read_fd for descriptor, _ in ready)
        if woken:
            self.clear()
        return woken

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self.write_fd)
