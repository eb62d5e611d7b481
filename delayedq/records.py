"""Ask whether anyone would write a log record: if not, neither it nor what it says need be made.

With the default LOGGING of Django and DEBUG off, the logger `django` is at INFO, and its handlers drop every record
below ERROR; so `Logger.isEnabledFor` says yes to records that nobody writes.
"""

from __future__ import annotations

import logging

from django.utils.log import RequireDebugFalse, RequireDebugTrue

from delayedq.attempt_log import AttemptHandler

#: What these filters answer does not depend on the record, and asking them changes nothing.
_ABOUT_SETTINGS = frozenset({RequireDebugTrue, RequireDebugFalse})
#: Where Python's own `Logger.callHandlers` is. Libraries that report errors replace it, maybe before this is imported,
#: and see records that no handler writes.
_FILE = logging.makeLogRecord.__code__.co_filename

_ANY = logging.makeLogRecord({})


def leave_failures_to_us(record: logging.LogRecord) -> bool:
    """A filter for the logger `django.tasks` in a worker: our line of a failed attempt has its traceback."""
    return not (record.funcName == "log_task_finished" and record.levelno >= logging.ERROR)


def leave_tasks_to_us(record: logging.LogRecord) -> bool:
    """A filter for the same logger: each attempt has one line of ours (`worker.logs`), and failures a traceback."""
    return record.funcName not in {"log_task_started", "log_task_finished"}


def is_written(logger: logging.Logger, level: int) -> bool:
    """False if no handler would write a record of this logger and level. What is not known for certain is True."""
    if not logger.isEnabledFor(level):
        return False
    if logger.filters and logger.filters != [leave_failures_to_us]:
        return True
    if getattr(getattr(type(logger).callHandlers, "__code__", None), "co_filename", "") != _FILE:
        return True
    found = False
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            if level >= handler.level and not _drops(handler):
                return True
            found = True
        at = at.parent if at.propagate else None
    return not found and (logging.lastResort is None or level >= logging.lastResort.level)


def _drops(handler: logging.Handler) -> bool:
    """True if the handler writes nothing, as the settings are. Filters run in their order; one that is not Django's
    may do anything with a record.
    """
    for one in handler.filters:
        if type(one) not in _ABOUT_SETTINGS:
            return False
        if not one.filter(_ANY):  # type: ignore[union-attr]  # it is one of these two
            return _is_plain(type(handler))
    return type(handler) in {logging.NullHandler, AttemptHandler}  # that leaves out what the tasks framework logs


def _is_plain(kind: type[logging.Handler]) -> bool:
    """True if such a handler asks its filters first."""
    return kind.handle is logging.Handler.handle and kind.filter is logging.Handler.filter
