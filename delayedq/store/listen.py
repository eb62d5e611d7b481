"""How a worker hears that another process changed the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.store.mysql_sql import NEWEST
from delayedq.store.postgresql_sql import LISTEN
from delayedq.store.sqlite_sql import DATA_VERSION

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class PostgreSQLListener:
    """LISTEN on a connection of its own."""

    interval: float | None = None

    def __init__(self, alias: str) -> None:
        self._connection = _own_connection(alias)
        with self._connection.cursor() as cursor:
            cursor.execute(LISTEN)

    @property
    def _psycopg(self) -> Any:
        return self._connection.connection

    def fileno(self) -> int:
        fd: int = self._psycopg.fileno()
        return fd

    def heard(self) -> bool:
        with self._connection.wrap_database_errors:
            return any(True for _ in list(self._psycopg.notifies(timeout=0)))

    def close(self) -> None:
        self._connection.close()


class SQLiteListener:
    """`PRAGMA data_version` changes when another connection writes; asking costs microseconds and reads no page."""

    interval: float | None = 0.005

    def __init__(self, alias: str) -> None:
        self._connection = _own_connection(alias)
        self._version = self._data_version()

    def _data_version(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(DATA_VERSION)
            version: int = cursor.fetchone()[0]
        return version

    def fileno(self) -> int:
        raise TypeError("SQLite has no descriptor to wait for; ask heard() every `interval`.")

    def heard(self) -> bool:
        before, self._version = self._version, self._data_version()
        return self._version != before

    def close(self) -> None:
        self._connection.close()


class MySQLListener:
    """Asks twice a second for the newest id, which is the last entry of the primary key, and what is paused.

    So it hears of most messages that were created, and of none that was moved: those a worker finds when it looks,
    after its POLL_INTERVAL at the latest.
    """

    interval: float | None = 0.5

    def __init__(self, alias: str) -> None:
        self._connection = _own_connection(alias)
        self._newest = self._ask()

    def _ask(self) -> tuple[int, ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(NEWEST)
            newest: tuple[int, ...] = cursor.fetchone()
        return newest

    def fileno(self) -> int:
        raise TypeError("MySQL has no descriptor to wait for; ask heard() every `interval`.")

    def heard(self) -> bool:
        (before, *pauses), (newest, *now) = self._newest, self._ask()
        self._newest = (max(before, newest), *now)
        return newest > before or now != pauses

    def close(self) -> None:
        self._connection.close()


def _own_connection(alias: str) -> BaseDatabaseWrapper:
    connection = connections[alias].copy()
    connection.ensure_connection()
    return connection
