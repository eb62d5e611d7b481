"""LISTEN on a connection of its own, which must be a session of its own: not one of PgBouncer in transaction mode."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import connections

from delayedq.conf import get_settings
from delayedq.store.listener import Listener
from delayedq.store.postgresql.sql import LISTEN, LISTEN_TO_STOPPED, LISTEN_TO_WAITING

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

WAITING, STOPPED = "delayedq_waiting", "delayedq_stopped"
# Only the listener that sends a proof knows its payload. Others are woken, and scan nothing.
LISTEN_TO_PROOF = "LISTEN delayedq_proof"
SEND_PROOF = "SELECT pg_notify('delayedq_proof', %(proof)s)"


class PostgreSQLListener(Listener):
    """Connects as the alias does, or by DELAYEDQ["LISTENER_DSN"], which goes round a pooler."""

    interval: ClassVar[float | None] = None
    listen_to: ClassVar[tuple[str, ...]] = (LISTEN, LISTEN_TO_WAITING, LISTEN_TO_STOPPED)
    channel: ClassVar[str] = "delayedq"

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._proof = secrets.token_hex(8)
        with self._connection.cursor() as cursor:
            for statement in self.listen_to:
                cursor.execute(statement)

    def _connect(self) -> BaseDatabaseWrapper:
        connection = super()._connect()
        if dsn := get_settings().LISTENER_DSN:
            _address(connection.settings_dict, dsn)
        return connection

    @property
    def _psycopg(self) -> Any:
        return self._connection.connection

    def fileno(self) -> int:
        fd: int = self._psycopg.fileno()
        return fd

    def begin_proof(self) -> None:
        self.proved = False
        with self._connection.cursor() as cursor:
            cursor.execute(LISTEN_TO_PROOF)
        with connections[self._alias].cursor() as cursor:
            cursor.execute(SEND_PROOF, {"proof": self._proof})

    def heard(self) -> bool:
        with self._connection.wrap_database_errors:
            notifications = list(self._psycopg.notifies(timeout=0))
        self.proved = self.proved or any(one.payload == self._proof for one in notifications)
        self.heard_waiting = self.heard_waiting or any(one.channel == WAITING for one in notifications)
        self.heard_stopped = self.heard_stopped or any(one.channel == STOPPED for one in notifications)
        return any(one.channel == self.channel for one in notifications)


def _address(settings: dict[str, Any], dsn: str) -> None:
    """Put where the DSN points to into the settings of a Django connection; what it leaves out is libpq's default."""
    from psycopg.conninfo import conninfo_to_dict  # only projects on PostgreSQL have it

    given = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    settings.update({name: given.pop(parameter, "") for name, parameter in names.items()})
    settings["OPTIONS"] = {**settings["OPTIONS"], "pool": False, **given}
