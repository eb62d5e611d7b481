"""Log lines that never wait: a full pipe without a reader must not stop a process that has to renew leases."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import stat
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A pipe counts as full when a quarter of it waits to be read: Linux fills whole pages, and a traceback has several.
FULL = 0.25
#: Seconds that a line waits at most for a reader that is slow.
PATIENCE = 0.05


def never_block() -> None:
    """From now on, lines for streams without a reader are dropped and counted, in this process and its children."""
    for handler in _handlers():
        fileno = getattr(getattr(handler, "stream", None), "fileno", None)
        try:
            handler.addFilter(Unread(fileno()))  # type: ignore[misc]
        except (TypeError, OSError, ValueError):  # it has no descriptor
            continue


def _handlers() -> Iterator[logging.Handler]:
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    yield from {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        yield logging.lastResort


class Unread(logging.Filter):
    """Drops records while the stream `fd` is full, and adds their number to the next one that is written."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """False if the record must not be written. A slow reader is waited for once."""
        patience = 0.0 if self._dropped else PATIENCE
        while is_full(self._fd):
            if patience <= 0:
                self._dropped += 1
                return False
            time.sleep(0.005)
            patience -= 0.005
        if self._dropped:
            record.msg = f"{record.getMessage()} ({self._dropped} lines before were dropped: the output was not read.)"
            record.args, self._dropped = (), 0
        return True


def is_full(fd: int) -> bool:
    """True if a write of a few pages to this pipe or socket might have to wait."""
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return False
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if not poll.poll(0):
            return True
        return stat.S_ISFIFO(mode) and _unread(fd) > FULL * fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except (OSError, AttributeError):  # closed; or a system that does not tell
        return False


def _unread(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")
