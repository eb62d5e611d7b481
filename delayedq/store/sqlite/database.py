"""SQLite: its clock, which is the host's, and its words in the statements that all databases share."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from django.utils import timezone

from delayedq.sql.dialects import SQLITE, Dialect, instant, text
from delayedq.store.claim_tokens import new_token
from delayedq.store.database import Database, Listener
from delayedq.store.protocol import Claimed
from delayedq.store.sqlite import sql
from delayedq.store.sqlite.sql import DATA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django.db import Error, OperationalError

# Times on their way into the statements of SQLite, and out of its rows.


#: A lease that ran out 10 minutes ago is claimed although its worker lives: nothing renews it any more.
UNRENEWED = timedelta(minutes=10)


def leased(moment: datetime, lease: timedelta, worker: str, token: int | None = None) -> dict[str, Any]:
    """The parameters of `sql.LEASE`."""
    parameters = {"token": token or new_token(), "worker": worker, "now": text(moment), "until": text(moment + lease)}
    return {**parameters, **unrenewed(moment)}


def claimed_from(row: tuple[Any, ...]) -> Claimed:
    """What `sql.LEASE` returns."""
    return Claimed._make([*row[:9], *map(instant, row[9:12]), *row[12:]])


def unrenewed(moment: datetime) -> dict[str, str]:
    """The parameter of `sql.free`: leases that had run out by then are nobody's, even if their worker lives."""
    return {"unrenewed": text(moment - UNRENEWED)}


# Whether a process of this host lives, and is the one it was: its id may be that of another by now.


#: As /proc/<pid>/stat has them: killed, and its parent has not been told yet; stopped by a signal or a debugger.
_DEAD, _STOPPED = "ZXx", "Tt"


class Process(NamedTuple):
    """A process that is not dead. `started_at`: in ticks since the start of the host; 0 if the system does not tell."""

    started_at: int
    stopped: bool


def find(pid: int) -> Process | None:
    """The process of this id; None if there is none, or a zombie.

    Where there is no /proc, all that is known is that the id exists.

        find(os.getpid()).started_at
    """
    try:
        # The name of the process comes second, in brackets, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _signalled(pid)
    state, started_at = fields[0], int(fields[19])
    return None if state in _DEAD else Process(started_at, state in _STOPPED)


def lives(worker: str | None) -> bool:
    """True if the worker of this name is a process that runs on this host, and is not stopped.

    Names are "host:pid" or "name@host:pid". The process may be another one that was given the id.
    """
    host, _, pid = (worker or "").rpartition("@")[2].rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    process = find(int(pid))
    return process is not None and not process.stopped


def _signalled(pid: int) -> Process | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # of another user
        pass
    return Process(0, stopped=False)


# Database


class SQLiteDatabase(Database):
    dialect: ClassVar[Dialect] = SQLITE
    heartbeat: ClassVar[str] = sql.HEARTBEAT

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        #: The connection of each thread that knows a function, by the name of that.
        self._defined = local()

    def _clock(self) -> datetime:
        return timezone.now()

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.define(sql.LIVES, lives, deterministic=False)
        return super()._rows(statement, parameters)

    @property
    def now_parameter(self) -> str:
        return text(self.now())

    def is_deadlock(self, error: OperationalError) -> bool:
        """Another connection wrote between a transaction's first read and its first write."""
        return getattr(error.__cause__, "sqlite_errorname", None) == "SQLITE_BUSY_SNAPSHOT"

    def is_stuck(self, error: Error) -> bool:
        """What opened the database while its files were read-only can't write until all connections of the process are
        closed at one time: they share one descriptor of the `-shm` file. With the files writable, only that is left.
        """
        name = str(self.connection.settings_dict["NAME"])
        said = getattr(error.__cause__, "sqlite_errorname", "")
        if not said.startswith("SQLITE_READONLY") or name.startswith("file:"):
            return False
        files = (Path(f"{name}{suffix}") for suffix in ("", "-wal", "-shm"))
        return all(os.access(one, os.W_OK) for one in (Path(name).parent, *files) if one.exists())

    def migration_lock(self) -> ExitStack | None:
        """A locked file beside the database, which has no locks of sessions. It is there while somebody migrates.

        Not on Windows, which locks no files for others.
        """
        try:
            import fcntl
        except ImportError:
            return ExitStack()
        if self.connection.is_in_memory_db():  # type: ignore[attr-defined]  # of SQLite's
            return ExitStack()
        name = str(self.connection.settings_dict["NAME"])
        path = Path(f"{urlsplit(name).path if name.startswith('file:') else name}-migrating")
        with ExitStack() as lock:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            lock.callback(os.close, file)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), path.stat()):  # else the process before has just removed it
                    lock.callback(path.unlink)
                    return lock.pop_all()
        return None

    def many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Run a statement once per row; returns how many rows of the table it changed."""
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, list(rows))
            changed: int = cursor.rowcount
        return changed

    def define(self, name: str, function: Callable[..., Any], *, deterministic: bool = True) -> None:
        """Let the statements of this thread's connection call a function of constants under this name.

        SQLite refuses to define it again while a statement runs: that is done once for each connection.
        """
        self.connection.ensure_connection()
        connection = self.connection.connection
        if getattr(self._defined, name, None) is not connection:
            connection.create_function(name, function.__code__.co_argcount, function, deterministic=deterministic)
            setattr(self._defined, name, connection)


# `PRAGMA data_version` changes when another connection writes; asking costs microseconds and reads no page.


class SQLiteListener(Listener):
    interval: ClassVar[float | None] = 0.005

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._version = self._data_version()

    def _data_version(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(DATA_VERSION)
            version: int = cursor.fetchone()[0]
        return version

    def heard(self) -> bool:
        before, self._version = self._version, self._data_version()
        return self._version != before
