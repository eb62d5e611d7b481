"""Log lines that never wait: a full pipe without a reader must not stop a process that has to renew leases."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import stat
import sys
import termios
import time
from datetime import datetime
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.management.color import supports_color

from delayedq.compat import TASKS_LOGGER
from delayedq.operations.wording import printable
from delayedq.records import leave_tasks_to_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.core.lifecycle import Decision
    from delayedq.worker.transitions import AttemptResult

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


# One readable line for each attempt that ended, while developing; and then none of those that Django would log.


GREEN, YELLOW, RED, GREY, PLAIN = "\033[32m", "\033[33m", "\033[31m", "\033[90m", "\033[0m"

_COLOURS = {"succeeded": GREEN, "failed": RED}


def wanted_by_default() -> bool:
    """With DEBUG, and without a LOGGING of the project: Django's own would write two lines per task."""
    return bool(settings.DEBUG and not settings.LOGGING)


class TaskLines:
    """Belongs to the loop of a worker process. Lines of one round trip are written together."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._colours = wanted and supports_color() and "NO_COLOR" not in os.environ
        if wanted:
            logging.getLogger(TASKS_LOGGER).addFilter(leave_tasks_to_us)

    def tell(self, concluded: Iterable[tuple[AttemptResult, Decision | None]]) -> None:
        """None instead of a decision: the message has succeeded."""
        if self._wanted and not is_full(sys.stdout.fileno()):
            lines = "".join(self._line(*one) for one in concluded if one[0].started is not None)
            # A key may have letters that the terminal lacks, say where PYTHONIOENCODING is ascii.
            sys.stdout.write(lines.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding))
            sys.stdout.flush()

    def _line(self, result: AttemptResult, decided: Decision | None) -> str:
        attempt, word = result.attempt, _word(decided)
        name = printable(f"{attempt.kind} {attempt.key or f'#{attempt.id}'}")
        assert result.started is not None
        took = _span(result.finished - result.started)
        again = f", attempt {attempt.attempt} of {attempt.max_attempts}" if attempt.attempt > 1 else ""
        error = f": {type(result.error).__name__}" if result.error is not None else ""
        moment = datetime.now().astimezone().strftime("%H:%M:%S")
        if self._colours:
            word = f"{_COLOURS.get(word.strip(), YELLOW)}{word}{PLAIN}"
            moment, took = f"{GREY}{moment}{PLAIN}", f"{GREY}{took}"
            again += PLAIN
        return f"{moment} {word} {name} {took}{again}{error}\n"


def _word(decided: Decision | None) -> str:
    if decided is None:
        return "succeeded"
    if decided.outcome is not None:
        return f"{decided.outcome:9}"
    return "later    " if decided.delay is None else f"in {_span(decided.delay):6}"


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
