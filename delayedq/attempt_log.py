"""Keep the last log lines of each attempt, and its processor time, for the record of its error should it fail.

    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {
            "console": {"class": "logging.StreamHandler"},
            "attempts": {"class": "delayedq.attempt_log.AttemptHandler", "level": "INFO"},
        },
        "root": {"handlers": ["console", "attempts"], "level": "INFO"},
    }

Without such a handler, attempts pay nothing for it. LOGGING is read before apps are loaded, so this imports no models.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from delayedq.exceptions import INTERRUPTIONS

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

#: So many lines are kept if the handler does not say, and at most.
LINES, MOST = 20, 100

#: At most this many characters of a line are stored.
LENGTH = 200

#: What the tasks framework logs of each attempt is in the message's record.
_LEFT_OUT = frozenset({"django.tasks", "django_tasks"})

_kept: ContextVar[KeptLog | None] = ContextVar("delayedq_kept_log", default=None)


class AttemptHandler(logging.Handler):
    """Keeps what the task of the calling thread, or async task, logs. `lines`: the last so many, 1 to 100.

    Raises ValueError for another number.
    """

    #: The most lines that a handler of this process keeps; 0: there is none.
    lines: ClassVar[int] = 0

    def __init__(self, lines: int = LINES) -> None:
        if type(lines) is not int or not 1 <= lines <= MOST:
            raise ValueError(f"AttemptHandler keeps 1 to {MOST} lines, not {lines!r}.")
        super().__init__()
        self.setFormatter(_OneLine())
        AttemptHandler.lines = max(AttemptHandler.lines, lines)

    def emit(self, record: logging.LogRecord) -> None:
        kept = _kept.get()
        if kept is None or record.name in _LEFT_OUT:
            return
        try:
            kept.add(record.created, self.format(record))
        except INTERRUPTIONS:  # they are the task's
            raise
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)


class _OneLine(logging.Formatter):
    """Level, logger and message. An error that a record has becomes its class and text: a traceback is too long.

    It writes nothing into the record, unlike the base class, whose other formatters would find it there.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname} {record.name}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return text if error is None else f"{text} ({type(error).__qualname__}: {error})"


class KeptLog:
    """Of one attempt, while it runs and until it is settled; a context manager around the task (`delayedq.hooks`).

    `processor_seconds`: what its thread took; None for an async task, which shares its thread, and before the end.
    """

    __slots__ = ("_began", "_lines", "_measured_from", "_token", "processor_seconds")

    def __init__(self, attempt: Any) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=AttemptHandler.lines)
        self._measured_from = time.thread_time() if attempt.threaded else None
        self._began = time.time()
        self._token: Token[KeptLog | None] | None = None
        self.processor_seconds: float | None = None
        attempt.log = self

    def __enter__(self) -> None:
        self._token = _kept.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _kept.reset(self._token)
        if error is not None and self._measured_from is not None:
            self.processor_seconds = time.thread_time() - self._measured_from

    def add(self, at: float, text: str) -> None:
        """`at`: in seconds since the epoch. The text is cut when it is stored, after its secrets were masked."""
        self._lines.append((at, text))

    @property
    def lines(self) -> list[str]:
        """The oldest first, each with the seconds since the attempt began: "+1.250 INFO shop.mail: sent"."""
        kept = [*self._lines]  # at once: a call of the task may go on in another thread, and log
        return [f"+{max(0.0, at - self._began):.3f} {text}" for at, text in kept]
