"""The databases as the scheduler sees them: who waits for a lock; how connections are lost and transactions undone."""

from __future__ import annotations

import sqlite3
import time
from threading import Lock

from django.db import OperationalError, connections

from tests.faults.clients import PATIENCE, Died
from tests.faults.met import sometimes


class Server:
    """`patience`: seconds after which it is asked whether what has not come back waits for a lock; `grace`: the same
    while something may have got the lock that it waited for.
    """

    patience = grace = PATIENCE
    #: Whether the moment of a statement is that of its arrival at the server.
    reads_clock_late = True

    def __init__(self, alias, clock):
        self.alias, self.clock = alias, clock
        self.dialect = None

    def prepare(self, connection):
        """A connection that was just opened."""

    def vary(self, draws):
        """What differs from schedule to schedule."""

    def begin(self, connection):
        """A connection that a program begins to use."""

    def at_present(self, params):
        """The parameters of a statement that is sent now: servers read their clock when it arrives."""
        if self.reads_clock_late and isinstance(params, dict) and params.get("now") is not None:
            return {**params, "now": self.dialect.stored(self.clock())}
        return params

    def is_busy(self, error):
        """Whether a statement is to be tried again when another transaction has ended."""
        return False

    def waiting(self, clients):
        """How many of these wait for a lock in the server."""
        return 0

    def kill(self, connection):
        """The connection is lost, and what it has not committed is undone."""

    def undo(self, connection):
        """The server undoes its transaction, and says so."""

    def ask(self, raw):
        """Any statement."""

    def close(self):
        pass


class SQLiteServer(Server):
    reads_clock_late = False

    def __init__(self, alias, clock):
        super().__init__(alias, clock)
        #: Whether transactions begin as writers.
        self.mode = "IMMEDIATE"

    def vary(self, draws):
        self.mode = draws.choice(["IMMEDIATE", "IMMEDIATE", None])

    def prepare(self, connection):
        connection.connection.execute("PRAGMA busy_timeout = 0")
        connection.connection.execute("PRAGMA synchronous = OFF")

    def begin(self, connection):
        connection.transaction_mode = self.mode

    def is_busy(self, error):
        return getattr(error.__cause__, "sqlite_errorname", None) == "SQLITE_BUSY" and not hasattr(error, "is_made")

    def kill(self, connection):
        connection.connection.close()
        raise Died

    def undo(self, connection):
        """Others had the write lock for longer than the busy timeout."""
        if connection.in_atomic_block:
            return
        cause = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorname = "SQLITE_BUSY"
        error = OperationalError("database is locked")
        error.is_made = True
        raise error from cause


class _Watched(Server):
    """A server with a connection beside those of the clients."""

    def __init__(self, alias, clock):
        super().__init__(alias, clock)
        self._watch = self._open()

    def _open(self):
        connection = connections[self.alias]
        return connection.get_new_connection(connection.get_connection_params())

    def close(self):
        self._watch.close()


class PostgreSQLServer(_Watched):
    patience, grace = 0.003, 0.0

    _WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid = ANY(%s)"
    _KILL = "SELECT pg_terminate_backend(%s, 10000)"
    _UNDO = "DO $$BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END$$"

    def __init__(self, alias, clock):
        super().__init__(alias, clock)
        self._watch.autocommit = True
        #: The processes of the server, by client.
        self._pids = {}

    def prepare(self, connection):
        connection.connection.execute("SET deadlock_timeout = '10ms'")
        self._pids[connection.boundaries.client] = connection.connection.info.backend_pid

    def waiting(self, clients):
        pids = [self._pids[one] for one in clients if one in self._pids]
        return self._watch.execute(self._WAITING, [pids]).fetchone()[0]

    def kill(self, connection):
        self._watch.execute(self._KILL, [connection.connection.info.backend_pid])

    def undo(self, connection):
        sometimes("a deadlock was tried again")
        with connection.wrap_database_errors:
            connection.connection.execute(self._UNDO)

    def ask(self, raw):
        raw.execute("SELECT 1")


class MariaDBServer(_Watched):
    patience, grace = 0.003, 0.003

    _WAITING = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    _LEFT = "SELECT count(*) FROM information_schema.processlist WHERE id = %s"
    _UNDO = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'"

    def __init__(self, alias, clock):
        super().__init__(alias, clock)
        self._watch.autocommit(True)
        #: The scheduler asks while a client that is to lose its connection does.
        self._lock = Lock()

    def _ask(self, statement, values=()):
        with self._lock, self._watch.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()

    def waiting(self, clients):
        return int(self._ask(self._WAITING)[1])

    def kill(self, connection):
        number = connection.connection.thread_id()
        self._ask(f"KILL {number:d}")
        until = time.monotonic() + PATIENCE
        while self._ask(self._LEFT, [number])[0] and time.monotonic() < until:
            pass

    def undo(self, connection):
        """A deadlock ends all of a transaction."""
        sometimes("a deadlock was tried again")
        with connection.wrap_database_errors:
            connection.connection.rollback()
            self.ask(connection.connection, self._UNDO)

    def ask(self, raw, statement="SELECT 1"):
        with raw.cursor() as cursor:
            cursor.execute(statement)


SERVERS = {"sqlite": SQLiteServer, "postgresql": PostgreSQLServer, "mysql": MariaDBServer}
