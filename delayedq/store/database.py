"""One database and the clock by which it is judged: what the store, the operator's store and the registry are made of.

A verb passes its statements here. Each of them may ask for `%(now)s`: the moment to which `at` has bound the clock, or
that of the database's own clock (SQLite: the host's).
"""

from __future__ import annotations

import os
import re
import select
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial, wraps
from threading import local
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Protocol, Self

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, OperationalError, ProgrammingError, connections, transaction

from delayedq import clock
from delayedq.core.backoff import retry
from delayedq.store.connecting import separate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager, ExitStack
    from datetime import datetime

    from django.db import DatabaseError
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model, QuerySet

    from delayedq.sql.dialects import Dialect

# A statement of the queue fails since tables or columns are missing: the error says what to do about that.


#: What the databases say: PostgreSQL by a code, MariaDB and MySQL by a number, SQLite in words.
CODES = {"42P01", "42703"}

NUMBERS = {1146, 1054}

WORDS = re.compile("no such (table|column)|has no column named")

#: A table of the queue, and not of the project, in such a sentence.
OURS = re.compile(r"""[\s."]delayedq_\w+(["'\s]|$)""")

NO_TABLE = re.compile("table|relation", re.IGNORECASE)


def is_unmigrated(error: DatabaseError) -> bool:
    """Whether a statement of the queue failed for want of a table or a column."""
    said = str(error).partition("\n")[0]
    cause = error.__cause__
    is_missing = getattr(cause, "sqlstate", None) in CODES or error.args[:1] in [(n,) for n in NUMBERS]
    return (is_missing or bool(WORDS.search(said))) and (bool(OURS.search(said)) or not NO_TABLE.search(said))


def missing_tables(alias: str) -> set[str]:
    """The tables of the queue that the database has not got. Raises django.db.Error."""
    wanted = {model._meta.db_table for model in apps.get_app_config("delayedq").get_models()}  # noqa: SLF001
    return wanted - set(connections[alias].introspection.table_names())


def cure(alias: str) -> str:
    return f"run manage.py migrate{'' if alias == DEFAULT_DB_ALIAS else f' --database {alias}'}"


# Database


class Database(ABC):
    """Threads share it; the connection is that of the thread."""

    dialect: ClassVar[Dialect]
    #: Writes workers, as one JSON document, into the worker registry.
    heartbeat: ClassVar[str]
    #: The sessions of others, and how one is ended; "": there is no server.
    sessions: ClassVar[str] = ""
    end_session: ClassVar[str] = ""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._moment: datetime | None = None
        #: What a thread tries again is tried as a whole, and not in its parts; copies share it.
        self._trying = local()

    def at(self, moment: datetime | None) -> Self:
        """The same database, judged at this moment; None: by its own clock."""
        bound = copy(self)
        bound._moment = moment  # noqa: SLF001 - a copy
        return bound

    @property
    def moment(self) -> datetime | None:
        """When it is judged; None: by its own clock. Whatever moves time for all verbs belongs here, and only here."""
        return self._moment or clock.chosen()

    def now(self) -> datetime:
        return self.moment or self._clock()

    def connections_left(self) -> int | None:
        """How many more connections this user may open; None: as many as it likes. Raises django.db.Error."""
        return None

    def end_sessions(self, application: str, chosen: Callable[[], bool]) -> int:
        """Have the server end the sessions of others for which `chosen` says so; returns how many it knew of.

        application: as which they have connected; only PostgreSQL knows that, and MySQL takes all of the same user in
        the same database. 0: there is no server. Raises django.db.Error.
        """
        if not self.sessions:
            return 0
        others = self.ids(self.sessions, {"application": application})
        for session in others:
            if chosen():
                with suppress(Error):  # it has ended by itself
                    self.write(self.end_session, {"session": session})
        return len(others)

    def end_lost_session(self, number: int, age: float) -> None:  # noqa: B027 - only PostgreSQL can
        """Have the server end the session of a connection of ours that was given up: it may know nothing of that, and
        keep the locks of its transaction. age: for how many seconds it had been open. Raises django.db.Error.
        """

    @abstractmethod
    def _clock(self) -> datetime:
        """What the database's own clock shows."""

    @property
    def now_parameter(self) -> Any:
        """`%(now)s`; None has the statement ask the database's clock."""
        moment = self.moment
        return None if moment is None else self.dialect.stored(moment)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of the current thread."""
        return connections[self.alias]

    def constraints(self, table: str) -> set[str]:
        """The names of the indexes and constraints of a table."""
        with self.connection.cursor() as cursor:
            return set(self.connection.introspection.get_constraints(cursor, table))

    @property
    def in_transaction(self) -> bool:
        """Is there a transaction of the caller's, who decides when it ends?"""
        return self.connection.in_atomic_block or not self.connection.get_autocommit()

    def unlocked[M: Model](self, rows: QuerySet[M]) -> QuerySet[M]:
        """Those of these rows that no other transaction has locked. They are locked here; SQLite locks no row."""
        return rows.select_for_update(skip_locked=self.connection.features.has_select_for_update_skip_locked)

    def atomic(self, *, savepoint: bool = True) -> AbstractContextManager[None]:
        return transaction.atomic(using=self.alias, savepoint=savepoint)

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """What one statement answers."""
        return self.retried(partial(self._rows, statement, {"now": self.now_parameter, **(parameters or {})}))

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def counted(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """`rows` of a statement that counts, after what its transaction has to say first (`Dialect.prepare`)."""
        if not self.dialect.prepare:
            return self.rows(statement, parameters)
        with self.atomic(savepoint=False):
            self.write(self.dialect.prepare)
            return self.rows(statement, parameters)

    def ids(self, statement: str, parameters: Mapping[str, Any] | None = None) -> set[int]:
        """The first column of what one statement answers."""
        return {row[0] for row in self.rows(statement, parameters)}

    def write(self, statement: str, parameters: Mapping[str, Any] | None = None) -> None:
        """One statement without an answer."""
        self.retried(partial(self._write, statement, {"now": self.now_parameter, **(parameters or {})}))

    def _write(self, statement: str, parameters: Mapping[str, Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    def conflict(self, *columns: str) -> list[str] | None:
        """The argument `unique_fields` of `bulk_create`, if a row may meet another one in these columns."""
        return list(columns) if self.dialect.names_conflicts else None

    def retried[R](self, work: Callable[[], R]) -> R:
        """Do the work; again, a few times, if the database undid it to end a deadlock.

        Within the caller's transaction it is done once: that was undone as a whole, and the error is the caller's. An
        error of a database that was not migrated names the cure.
        """
        try:
            return self._retried(work)
        except (ProgrammingError, OperationalError) as error:
            if not is_unmigrated(error):
                raise
            told = f"The database {self.alias!r} lacks tables or columns of delayedq: {cure(self.alias)}"
            raise type(error)(told) from error

    def _retried[R](self, work: Callable[[], R]) -> R:
        if self.in_transaction or getattr(self._trying, "again", False):
            return work()
        self._trying.again = True
        try:
            return retry(work, self._was_undone)
        finally:
            self._trying.again = False

    def _was_undone(self, error: Exception) -> bool:
        return isinstance(error, OperationalError) and self.is_deadlock(error)

    @abstractmethod
    def is_deadlock(self, error: OperationalError) -> bool:
        """Whether this error says that the transaction was undone for the sake of another, and may be tried again."""

    def is_stuck(self, error: Error) -> bool:  # noqa: ARG002 - none where a server has the files
        """Whether this error will come again until the process ends, though the database is well again."""
        return False

    # Migrations

    #: Whether an index can be built without a lock that claims wait for.
    builds_indexes_beside: ClassVar[bool] = False

    @abstractmethod
    def migration_lock(self) -> ExitStack | None:
        """The lock of the process that migrates; None: another process has it. It ends when it is closed, and with the
        process. Raises django.db.Error, or OSError for a file.
        """

    def partitions(self, table: str) -> list[str]:  # noqa: ARG002 - only PostgreSQL has any
        """The names of the partitions of a table; none if it has none."""
        return []

    @contextmanager
    def partitions_kept(self) -> Iterator[None]:
        """Within it, no other process makes or drops partitions; waits for one that does. Raises django.db.Error."""
        yield

    @contextmanager
    def short_lock_waits(self) -> Iterator[None]:
        """Within it, a statement of this thread that waits for a table fails after a second: see `is_lock_timeout`."""
        yield

    def is_lock_timeout(self, error: OperationalError) -> bool:  # noqa: ARG002 - none where tables have no locks
        """Whether this error says that a lock did not come free in time."""
        return False


class HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


def retry_on_deadlock[S: HasDatabase, **P, R](verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A verb that is tried again when the database has undone it: see `Database.retried`."""

    @wraps(verb)
    def retried(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return store.database.retried(partial(verb, store, *args, **kwargs))

    return retried


# Notifications for workers: another process or thread changed the queue.


class Listener(ABC):
    """Reports that another process or thread changed the queue. It has a connection of its own, and one thread uses it.

    Raises django.db.Error if it can't connect.
    """

    #: Seconds between two calls of `heard`; None if `fileno` becomes readable instead.
    interval: ClassVar[float | None]

    #: False from `begin_proof` until it has heard what that sent.
    proved = True

    #: True as soon as it has heard that somebody waits for the end of a message; see `store.base.EndNotices`.
    heard_waiting = False

    #: True as soon as it has heard that a running message was stopped.
    heard_stopped = False

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._connection = self._connect()
        self._connection.ensure_connection()

    def _connect(self) -> BaseDatabaseWrapper:
        return separate(self._alias)

    def begin_proof(self) -> None:  # noqa: B027  what polls by itself has nothing to prove
        """Send it a notification of its own, on the calling thread's connection, if it depends on notifications.

        A listener that does not become `proved` is deaf. Raises django.db.Error.
        """

    def fileno(self) -> int:
        """The descriptor to wait for, where `interval` is None; raises TypeError elsewhere."""
        raise TypeError(
            f"{self._connection.display_name} has no descriptor to wait for: call heard() every `interval`."
        )

    @abstractmethod
    def heard(self) -> bool:
        """Whether there was a change since the last call. Raises django.db.Error if the connection is lost."""

    def close(self) -> None:
        self._connection.close()


# The wake-up pipe: one thread waits for it and for a listener at once; threads and signal handlers wake it.


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
