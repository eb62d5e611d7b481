"""PostgreSQL: its clock, its cursors, and its words in the statements that all databases share."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import psycopg
from psycopg import IsolationLevel

from delayedq.store.database import Database
from delayedq.store.dialect import BY_ROWS, Dialect
from delayedq.store.postgresql import registry_sql, sql
from delayedq.store.postgresql.parameters import Moments, MomentsDumper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from django.db import OperationalError
    from django.db.backends.utils import CursorWrapper

    #: A statement and its parameters.
    type Given = tuple[str, dict[str, Any]]

#: A deadlock; a serialization failure.
UNDONE = {"40P01", "40001"}


class _BatchCursor(psycopg.Cursor[Any]):
    """Never prepares a statement, whatever the connection's settings say: each batch is planned for its own length.

    PostgreSQL expects ten messages of a prepared statement, and plans nested loops: 53 ms to settle and claim 512
    messages, instead of 7 ms.
    """

    def execute(self, query: Any, params: Any = None, **_: Any) -> Self:
        if isinstance(params.get("scheduled_at"), Moments):  # to know their type costs other statements nothing
            self.adapters.register_dumper(Moments, MomentsDumper)
        return super().execute(query, params, prepare=False, binary=True)


class PostgreSQLDatabase(Database):
    dialect: ClassVar[Dialect] = Dialect(
        stored=lambda moment: moment,
        instant=lambda stored: stored,
        heartbeat=registry_sql.HEARTBEAT,
        after=BY_ROWS,
        # The order in each slice leaves the planner no other way.
        sliced="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT * FROM {table} WHERE {column} >= (slice->>0)::{type} AND {column} < (slice->>1)::{type}
        ORDER BY {column} OFFSET 0
    ) AS message""",
        dead="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT finished_at FROM delayedq_finishedmessage WHERE outcome = 'failed'
            AND finished_at >= (slice->>0)::timestamptz AND finished_at < (slice->>1)::timestamptz
        ORDER BY finished_at OFFSET 0
    ) AS message""",
        time_type="timestamptz",
        bucket="floor(extract(epoch FROM {time} - %(start)s::timestamptz) / %(width)s)::int",
        seconds="extract(epoch FROM {later} - {earlier})::float8",
        moment="%({})s::timestamptz",
        position="strpos",
        # PostgreSQL would take longer to compile one of these statements than to run it.
        prepare="SET LOCAL jit = off",
    )

    def connections_left(self) -> int | None:
        return int(self.rows(sql.CONNECTIONS_LEFT)[0][0])

    def _clock(self) -> datetime:
        moment: datetime = self.rows(sql.CLOCK)[0][0]
        return moment

    @contextmanager
    def atomic(self, *, savepoint: bool = True) -> Iterator[None]:
        """A transaction of the queue's own runs at READ COMMITTED, whatever OPTIONS say of the others."""
        if self.in_transaction or (level := self._level()) is None:
            with super().atomic(savepoint=savepoint):
                yield
            return
        connection = self.connection.connection
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        try:
            with super().atomic(savepoint=savepoint):
                yield
        finally:
            if not connection.closed:
                connection.isolation_level = level

    def _level(self) -> IsolationLevel | None:
        """What OPTIONS say; None: nothing."""
        self.connection.ensure_connection()
        level: IsolationLevel | None = self.connection.connection.isolation_level
        return level

    def is_deadlock(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlstate", None) in UNDONE

    def batch(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """`rows` for hundreds of messages: parameters stay out of the statement, and rows come in binary.

        Django's cursors write parameters into the statement, and have times written and read as texts.
        """
        return self.retried(partial(self._batch, statement, {"now": self.now_parameter, **parameters}))

    def _batch(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self._batch_cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return rows

    def _batch_cursor(self) -> CursorWrapper:
        cursor = self.connection.cursor()
        cursor.cursor = _BatchCursor(self.connection.connection)
        return cursor

    def batches[T](
        self, first: Given, second: Given, meanwhile: Callable[[], T]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], T]:
        """Two of `batch` in one way to the database and back, and what is done here meanwhile; in a transaction.

        Where libpq can't do that, one after the other.
        """
        together = self.connection.connection.pipeline if psycopg.capabilities.has_pipeline() else nullcontext
        with self._batch_cursor() as one, self._batch_cursor() as other:
            with self.connection.wrap_database_errors, together():
                for cursor, (statement, parameters) in ((one, first), (other, second)):
                    cursor.execute(statement, {"now": self.now_parameter, **parameters})
                done = meanwhile()
            return one.fetchall(), other.fetchall(), done
