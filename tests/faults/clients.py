"""Threads with a connection of their own, which wait for their turn before each statement and before each COMMIT."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from queue import SimpleQueue
from threading import Thread

from django.db import Error, OperationalError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from tests.faults.met import sometimes

#: Statements of Django's that no other client can tell from those beside them.
SILENT = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO")

#: Seconds.
PATIENCE = 10


class Fault(StrEnum):
    """What happens to a client at a boundary."""

    KILLED = "killed"  #: Its connection is lost before the statement.
    UNKNOWN = "unknown"  #: Its connection is lost after the statement or the COMMIT, before the answer.
    UNDONE = "undone"  #: The server ends its transaction to free another; on SQLite, another has the write lock.


class Died(BaseException):
    """A process that has no server between itself and its file is gone."""


class Client:
    """Runs one program after the other; `pause` waits until the scheduler says go, and with which fault."""

    def __init__(self, number, alias, server):
        self.number, self.alias, self.server = number, alias, server
        self._scheduler, self._programs, self._go = None, SimpleQueue(), SimpleQueue()
        self.is_scheduled = self.has_ended = self.is_parked = self.is_lost = False
        self.where, self.faults, self.error, self.releases = "", 0, None, 0
        self._thread = Thread(target=self._run, name=f"client {number}", daemon=True)
        self._thread.start()

    # For the scheduler

    def start(self, program, scheduler):
        self._scheduler, self.has_ended, self.error, self.faults = scheduler, False, None, 0
        self.is_parked, self.releases = False, 0
        self._programs.put(program)

    def go(self, fault):
        self._go.put(fault)

    def close(self):
        """One that is stuck ends with the process."""
        self._programs.put(None)
        self._thread.join(timeout=PATIENCE)

    # In its thread

    def _run(self):
        while program := self._programs.get():
            try:
                self._connect()
                self.is_scheduled = True
                self.pause("begin")
                program(self)
            except BaseException as error:  # noqa: BLE001  the scheduler tells
                self.error = error
            self.is_scheduled, self.has_ended = False, True
            self._scheduler.arrivals.put(self)
        connections.close_all()

    def _connect(self):
        connection = connections[self.alias]
        if getattr(connection, "boundaries", None) is None:
            connection.boundaries = Boundaries(self, connection)
        connection.ensure_connection()
        self.server.begin(connection)

    def reconnect(self):
        """After an error: whatever is left of the old connection is gone."""
        was_scheduled, self.is_scheduled = self.is_scheduled, False
        connection = connections[self.alias]
        with suppress(Error):
            connection.close()
        connection.connection, connection.in_atomic_block, connection.needs_rollback = None, False, False
        connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
        connection.closed_in_transaction = self.is_lost = False
        self._connect()
        self.is_scheduled = was_scheduled

    def pause(self, where):
        """What the scheduler does to it; None: nothing."""
        if not self.is_scheduled:
            return None
        self.where = where
        goes_on, fault = self._scheduler.goes_on(self)
        if not goes_on:
            self._scheduler.arrivals.put(self)
            fault = self._go.get()
        self.faults += fault is not None
        return fault


@receiver(connection_created)
def _prepare(connection, **_):
    """Also one that Django opens again by itself."""
    if boundaries := getattr(connection, "boundaries", None):
        boundaries.client.server.prepare(connection)


class Boundaries:
    """What stands around each statement and each COMMIT of a connection."""

    def __init__(self, client, connection):
        self.client, self._connection, self._server = client, connection, client.server
        self._commit, self._rollback = connection._commit, connection._rollback
        connection.execute_wrappers.append(self)
        connection._commit, connection._rollback = self.commit, self.rollback

    def __call__(self, execute, sql, params, many, context):
        if not self.client.is_scheduled or sql.startswith(SILENT):
            return execute(sql, params, many, context)
        while True:
            fault = self.client.pause(sql)
            self._before(fault)
            try:
                answer = execute(sql, self._server.at_present(params), many, context)
            except OperationalError as error:
                if not self._server.is_busy(error):
                    raise
                sometimes("a statement waited for a lock")
                self.client.is_parked = True
                continue
            self._after(fault, context["cursor"])
            return answer

    def _before(self, fault):
        if fault is Fault.KILLED:
            sometimes("a connection was lost")
            self.client.is_lost = True
            self._server.kill(self._connection)
        elif fault is Fault.UNDONE:
            self._server.undo(self._connection)

    def _after(self, fault, cursor):
        if not self._connection.in_atomic_block:
            self.client.releases += 1
        if fault is Fault.UNKNOWN:
            self._lose_answer(cursor)

    def _lose_answer(self, cursor=None):
        if cursor is not None:
            cursor.close()  # SQLite commits the statement
        sometimes("the outcome of a commit was unknown")
        self.client.is_lost = True
        self._server.kill(self._connection)
        with self._connection.wrap_database_errors:
            self._server.ask(self._connection.connection)

    def commit(self):
        fault = self.client.pause("COMMIT")
        self._before(fault if fault is Fault.KILLED else None)
        self._commit()
        self.client.releases += 1
        if fault is Fault.UNKNOWN:
            self._lose_answer()

    def rollback(self):
        self.client.releases += 1
        self._rollback()
