"""SQLite: its clock, which is the host's, and its words in the statements that all databases share."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils import timezone

from delayedq.store.database import Database
from delayedq.store.dialect import BY_ROWS, Dialect
from delayedq.store.processes import lives
from delayedq.store.sqlite import sql
from delayedq.store.sqlite.values import instant, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from django.db import OperationalError


class SQLiteDatabase(Database):
    dialect: ClassVar[Dialect] = Dialect(
        stored=text,
        instant=instant,
        heartbeat=sql.HEARTBEAT,
        after=BY_ROWS,
        # CROSS JOIN: the slices come first, whatever the planner thinks.
        sliced="""json_each(%(slices)s) AS slice CROSS JOIN {table} AS message
    ON message.{column} >= json_extract(slice.value, '$[0]') AND message.{column} < json_extract(slice.value, '$[1]')
    """,
        dead="""json_each(%(slices)s) AS slice CROSS JOIN delayedq_finishedmessage AS message INDEXED BY delayedq_dead
    ON finished_at >= json_extract(slice.value, '$[0]') AND finished_at < json_extract(slice.value, '$[1]')
    AND outcome = 'failed'
    """,
        time_type="",
        bucket="(strftime('%%s', {time}) - strftime('%%s', %(start)s)) / %(width)s",
        seconds="round((julianday({later}) - julianday({earlier})) * 86400, 3)",
        moment="%({})s",
    )

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
