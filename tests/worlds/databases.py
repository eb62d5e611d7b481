"""The databases of the worlds: a server for each session and kind, and in it an empty database for each world."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.server import (
    NoServer,
    bundled,
    mariadb_socket,
    mysql_socket,
    pgbouncer_socket,
    postgresql_socket,
    standby_socket,
)
from tests.worlds.environments import UNSTABLE, postgresql_17

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.worlds.declared import World


class Servers:
    """Those that were needed so far; they run until `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._sockets: dict[str, str] = {}

    def close(self) -> None:
        self._stack.close()

    def start(self, kind: str) -> None:
        """Raises NoServer."""
        if kind == "sqlite" or kind in self._sockets:
            return
        if kind.startswith(("mariadb", "mysql")) and find_spec("MySQLdb") is None:
            raise NoServer("mysqlclient is not installed: uv sync --group test --extra mysql")
        if kind in BEHIND:
            self.start(NEWEST)
            started = BEHIND[kind](self._sockets[NEWEST])
        else:
            started = SERVED[kind]()
        self._sockets[kind] = self._stack.enter_context(started)

    def settings(self, world: World) -> str:
        """What the settings of this world say beside those of `startproject`, to find an empty database of its own."""
        if world.database == "sqlite":
            return ""
        name = "world_" + world.name.replace("-", "_").replace(".", "_")
        kind, socket = world.database.partition(" ")[0], self._sockets[world.database]
        if kind in {"mariadb", "mysql"}:
            return f'DATABASES["default"] = {_mysql(socket, name, world.prepare)}\n'
        direct = self._sockets[NEWEST if kind in BEHIND else world.database]
        own = _postgresql(direct, name, world.prepare)
        found = f'DATABASES["default"] = {own}\n'
        if kind == "pgbouncer":
            pooled = {"HOST": socket, "PORT": "6432", "DISABLE_SERVER_SIDE_CURSORS": True}
            found += f'DATABASES["default"] |= {pooled}\n'
            found += f'DELAYEDQ["LISTENER_DSN"] = "host={direct} user=postgres dbname={name}"\n'
        if kind == "replica":
            found += f'DATABASES["replica"] = DATABASES["default"] | {{"HOST": {socket!r}}}\n'
        return found


def _postgresql(socket: str, name: str, prepare: tuple[str, ...]) -> dict[str, Any]:
    import psycopg

    for database, statements in (("postgres", [f"CREATE DATABASE {name}"]), (name, prepare)):
        with psycopg.connect(host=socket, user="postgres", dbname=database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres", "HOST": socket}


def _mysql(socket: str, name: str, prepare: tuple[str, ...]) -> dict[str, Any]:
    import MySQLdb

    connection = MySQLdb.connect(unix_socket=socket, user="root")
    with connection.cursor() as cursor:
        for statement in (f"CREATE DATABASE {name} CHARACTER SET utf8mb4", *prepare):
            cursor.execute(statement)
    connection.close()
    return {"ENGINE": "django.db.backends.mysql", "NAME": name, "USER": "root", "HOST": socket}


NEWEST = "postgresql 18"
SERVED: dict[str, Callable[[], Any]] = {
    NEWEST: postgresql_socket,
    "postgresql 17": lambda: postgresql_socket(binaries=postgresql_17()),
    "postgresql 16": lambda: postgresql_socket(binaries=bundled(16)),
    "postgresql 15": lambda: postgresql_socket(binaries=Path("/usr/lib/postgresql/15/bin")),
    "mariadb 10.11": mariadb_socket,
    "mysql 9.7": lambda: mysql_socket(UNSTABLE / "sbin" / "mysqld"),
}
#: What needs the socket of the newest PostgreSQL.
BEHIND: dict[str, Callable[[str], Any]] = {"pgbouncer": pgbouncer_socket, "replica": standby_socket}
