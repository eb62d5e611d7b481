"""The database sessions of a task thread: what one task changes in them is reset before the next one."""

from __future__ import annotations

import logging
import re
import select
import threading
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver

from delayedq.exceptions import INTERRUPTIONS
from delayedq.tasks import current_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.worker.attempt import Attempt

logger = logging.getLogger("delayedq")

#: Statements that change the session for longer than a transaction, or may do so, and functions that do.
_STATEMENT = re.compile(
    r"\s*(SET(?!\s+(LOCAL|CONSTRAINTS|TRANSACTION|STATEMENT)\b)|RESET|DISCARD|DEALLOCATE|LISTEN|BEGIN|START"
    r"|PREPARE|DECLARE|USE|LOCK\s+TABLES|ATTACH|PRAGMA\s+\w+\s*=|CREATE\s+((LOCAL|GLOBAL)\s+)?TEMP|DO\b|CALL\b)",
    re.IGNORECASE,
)
_FUNCTIONS = ("set_config(", "advisory_lock", "get_lock(")
_INTO_TEMPORARY = re.compile(r"\bINTO\s+((LOCAL|GLOBAL)\s+)?TEMP", re.IGNORECASE)
#: Where another statement may begin. In a literal it divides what is none: then a session is closed in vain.
_DIVIDERS = (";", "--", "/*")
_DIVIDER = re.compile(r";|--[^\n]*|/\*.*?\*/", re.DOTALL)
_LOCAL = re.compile(r"set_config\(\s*'[^']*'\s*,\s*'[^']*'\s*,\s*true\s*\)")
#: Of statements up to this number of characters, what was found out about the last ones is kept.
_SHORT = 10_000
#: What PostgreSQL reports to its client whenever it changes, from whatever statement: reading it takes no round trip.
_REPORTED = (
    b"TimeZone", b"DateStyle", b"IntervalStyle", b"client_encoding", b"application_name", b"is_superuser",
    b"session_authorization", b"default_transaction_read_only", b"search_path",
)  # fmt: skip


def keep_no_query_log(alias: str) -> None:
    """For a thread of ours: with DEBUG, Django would write out each statement with its values, and keep them.

    Unless `django.db.backends` is to log them.
    """
    if not logging.getLogger("django.db.backends").isEnabledFor(logging.DEBUG):
        connections[alias].make_debug_cursor = connections[alias].make_cursor  # type: ignore[method-assign,assignment]
        connections[alias].queries_log = deque(maxlen=0)  # beginnings and ends of transactions go by no cursor


class _Session:
    """Observes the statements of one connection, as a wrapper of Django's cursors."""

    __slots__ = ("changed", "connection", "reported", "used")

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        connection.execute_wrappers.append(self)
        self.begin()

    def begin(self) -> None:
        """The connection is new."""
        self.used = self.changed = False
        self.reported = self._report()

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        self.used = True
        self.changed = self.changed or _changes(sql if isinstance(sql, str) else self._text(sql))
        return execute(sql, params, many, context)

    def is_changed(self) -> bool:
        """True if what the last task ran may have changed the session; a session that it did not use costs nothing."""
        return self.used and (self.changed or self.reported != self._report())

    def _text(self, sql: Any) -> str:
        """Of bytes, and of a composition of psycopg's."""
        if isinstance(sql, bytes):
            return sql.decode(errors="replace")
        try:
            return str(sql.as_string(self.connection.connection))
        except INTERRUPTIONS:
            raise
        except Exception:  # noqa: BLE001  the statement itself will tell what is wrong with it
            return repr(sql)

    def _report(self) -> tuple[bytes | None, ...]:
        if self.connection.vendor != "postgresql" or self.connection.connection is None:
            return ()
        parameter_status = self.connection.connection.pgconn.parameter_status
        return tuple([parameter_status(name) for name in _REPORTED])


def _changes(statement: str) -> bool:
    """True if it may change the session for longer than its transaction."""
    return _known_changes(statement) if len(statement) <= _SHORT else _may_change(statement)


def _may_change(statement: str) -> bool:
    if _STATEMENT.match(statement):
        return True
    if any(one in statement for one in _DIVIDERS) and any(map(_STATEMENT.match, _DIVIDER.split(statement))):
        return True
    lower = statement.lower()
    if "temp" in lower and _INTO_TEMPORARY.search(statement):
        return True
    if not any(function in lower for function in _FUNCTIONS):
        return False
    lower = _LOCAL.sub("", lower)
    return any(function in lower for function in _FUNCTIONS)


#: Threads make the same statements again and again, and reading one takes longer than finding it.
_known_changes = lru_cache(maxsize=256)(_may_change)


class _Shared:
    """A connection that all async tasks use: no transaction of one takes in what the others write.

    Who turns autocommit off by hand keeps the transaction until another one uses the connection. Then it is rolled
    back, one WARNING names its task, and the next use by that task raises TransactionManagementError.
    """

    __slots__ = ("begun_by", "connection", "undone")

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        #: Who has begun the transaction that is open, and whose one was rolled back.
        self.begun_by: Attempt | None = None
        self.undone: Attempt | None = None
        connection.set_autocommit = self._set_autocommit  # type: ignore[method-assign]

    def _set_autocommit(
        self,
        autocommit: bool,
        force_begin_transaction_with_broken_autocommit: bool = False,
    ) -> None:
        """Django's `atomic` calls it, too: only by hand is nothing forced."""
        one = self.connection
        if "commit" in vars(one):
            self._check()
        type(one).set_autocommit(one, autocommit, force_begin_transaction_with_broken_autocommit)
        self.begun_by = None if autocommit else current_attempt.get()
        if not autocommit and not force_begin_transaction_with_broken_autocommit:
            one.ensure_connection, one.commit = self._ensure_connection, self._commit  # type: ignore[method-assign]

    def _ensure_connection(self) -> None:
        """First of all that uses the connection, until it is shared again."""
        self._check()
        type(self.connection).ensure_connection(self.connection)

    def _commit(self) -> None:
        self._check()
        type(self.connection).commit(self.connection)

    def _check(self) -> None:
        attempt = current_attempt.get()
        if attempt is not None and attempt is self.undone:
            self.undone = None
            self._unguard()
            raise TransactionManagementError(
                "This transaction was rolled back, as all async tasks of a process share one connection. Use "
                "transaction.atomic() in one function that is called by sync_to_async()."
            )
        if self.begun_by is not None and attempt is not self.begun_by and not self.connection.in_atomic_block:
            self._undo(self.begun_by)
        elif self.begun_by is None and self.undone is None:
            self._unguard()

    def _undo(self, attempt: Attempt) -> None:
        self.begun_by = None
        self.undone = attempt
        logger.warning(
            "%s has turned autocommit off on %r, the connection of all async tasks, and another one uses it now: what "
            "it wrote there is rolled back. It should use transaction.atomic().", attempt.kind, self.connection.alias,
        )  # fmt: skip
        try:
            self.connection.rollback()
            type(self.connection).set_autocommit(self.connection, autocommit=True)
        except Error:
            self.connection.close()

    def _unguard(self) -> None:
        for name in ("ensure_connection", "commit"):
            vars(self.connection).pop(name, None)


class _Opened(threading.local):
    """The connections that the current thread has opened. Asking Django for them costs as much as a small task."""

    def __init__(self) -> None:
        #: None in threads that run no tasks.
        self.sessions: dict[BaseDatabaseWrapper, _Session] | None = None
        #: Those that all async tasks use, opened or not.
        self.shared: dict[BaseDatabaseWrapper, _Shared] = {}


_opened = _Opened()


def observe() -> None:
    """From now on the connections that the calling thread opens are observed."""
    _opened.sessions = {}


def share() -> None:
    """The connections of the calling thread are those of all async tasks; call it again after `restore`."""
    for alias in connections:
        with suppress(ImproperlyConfigured):  # whoever uses it is told
            if (connection := connections[alias]) not in _opened.shared:
                _opened.shared[connection] = _Shared(connection)


def observed() -> bool:
    """True if the connections of the calling thread are observed."""
    return _opened.sessions is not None


@receiver(connection_created)
def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    sessions = _opened.sessions
    if sessions is None:
        return
    if connection in sessions:
        sessions[connection].begin()
    elif connection in connections.all(initialized_only=True):
        sessions[connection] = _Session(connection)


def has_opened() -> bool:
    """Whether the calling thread has connections to be checked and restored; it is observed."""
    return bool(_opened.sessions)


def opened() -> Mapping[BaseDatabaseWrapper, object]:
    """The connections of the calling thread, which is observed; another thread may pass them to `may_be_dead`."""
    assert _opened.sessions is not None
    return _opened.sessions


def may_be_dead(connections: Mapping[BaseDatabaseWrapper, object]) -> bool:
    """Whether a server has ended one of these sessions, or has said something, while nothing was asked of it.

    A look at the socket, without a round trip: 1 or 2 µs for each connection.
    """
    return any(is_open(each) and _is_readable(each.connection) for each in [*connections])


def check() -> None:
    """Before a task: what the server has ended while it was idle is not the task's to find out.

    Raises django.db.Error.
    """
    if not (sessions := _opened.sessions):
        return
    for connection in [*sessions]:
        if is_open(connection) and _is_readable(connection.connection):
            connection.errors_occurred = True
            connection.close_if_unusable_or_obsolete()


def is_open(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None


def _is_readable(raw: Any) -> bool:
    """An idle connection has nothing to read but its end. One that was closed by hand is as good as ended."""
    try:
        look = select.poll()
        look.register(raw.fileno(), select.POLLIN)
        return bool(look.poll(0))
    except AttributeError:  # SQLite has no socket
        return False
    except Exception:  # noqa: BLE001  each driver has an error of its own for a connection that is closed
        return True


def restore(*, failed: bool = False, shared: bool = False, task: str = "a task") -> None:
    """After a task: close what it left broken, in a transaction, or with another session than it found.

    With DEBUG, its statements are forgotten, as Django does after a request.

    After one that has `failed`, the connections that it used are checked. shared: others run that use the same ones,
    and may need the session as it is. task: as a warning names it. Raises django.db.Error.
    """
    for connection, session in [*(_opened.sessions or {}).items()]:
        in_transaction = connection.in_atomic_block or not connection.autocommit
        if in_transaction and session.used and not failed:
            known = _opened.shared.get(connection)
            task = known.begun_by.kind if known and known.begun_by else task
            logger.warning(
                "%s has left a transaction open on %r: what it wrote there is rolled back. It should commit, call "
                "set_autocommit(True), or use transaction.atomic().", task, connection.alias,
            )  # fmt: skip
        if in_transaction or (session.is_changed() and not shared) or _is_closed(session):
            _drop(connection)
            continue
        if connection.queries_log:
            connection.queries_log.clear()
        if failed and session.used:
            connection.errors_occurred = True
        if not shared:  # what they have changed is restored later
            session.used = False
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _is_closed(session: _Session) -> bool:
    """Whether the task has closed it below Django, which would go on to use it."""
    raw, vendor = session.connection.connection, session.connection.vendor
    if raw is None or not session.used:
        return False
    if vendor == "sqlite":
        try:
            raw.total_changes  # noqa: B018
        except Exception:  # noqa: BLE001
            return True
        return False
    return bool(raw.closed) if vendor == "postgresql" else not raw.open


def _drop(connection: BaseDatabaseWrapper) -> None:
    """The next use opens another one. Also a pool must not hand this session to others, so it is closed for good."""
    if _opened.sessions is not None:
        connection.execute_wrappers.remove(_opened.sessions.pop(connection))
    _opened.shared.pop(connection, None)
    if connection.vendor == "postgresql" and connection.connection is not None:
        with suppress(Exception):
            connection.connection.close()
    connection.close()
    if connection in connections.all(initialized_only=True):
        del connections[connection.alias]
