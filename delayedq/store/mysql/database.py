"""MariaDB and MySQL: their clock, their words in the statements that all databases share, and many rows in a statement.

The rows travel as JSON documents, so that the number of statements does not grow with a batch.
"""

from __future__ import annotations

import json
from itertools import batched
from typing import TYPE_CHECKING, Any, ClassVar

from delayedq.store.database import Database
from delayedq.store.dialect import BY_CHOICE, Dialect
from delayedq.store.mysql import sql
from delayedq.store.mysql.values import document, instant, length, packets, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from django.db import OperationalError

#: A statement names at most this many rows.
ROWS = 1_000

#: This transaction was undone to end a deadlock; a lock did not come free in time.
UNDONE = {1213, 1205}


class MySQLDatabase(Database):
    dialect: ClassVar[Dialect] = Dialect(
        stored=text,
        instant=instant,
        heartbeat=sql.HEARTBEAT,
        after=BY_CHOICE,
        sliced="""JSON_TABLE(%(slices)s, '$[*]' COLUMNS (low {type} PATH '$[0]', high {type} PATH '$[1]')) AS slice
    STRAIGHT_JOIN {table} AS message ON message.{column} >= slice.low AND message.{column} < slice.high
    """,
        dead="",
        time_type="DATETIME(6)",
        bucket="TIMESTAMPDIFF(SECOND, CAST(%(start)s AS DATETIME(6)), {time}) DIV %(width)s",
        seconds="TIMESTAMPDIFF(MICROSECOND, {earlier}, {later}) / 1e6",
        moment="CAST(%({})s AS DATETIME(6))",
    )

    def _clock(self) -> datetime:
        return instant(self.rows(sql.CLOCK)[0][0])

    def connections_left(self) -> int | None:
        most, most_of_user, user = self.rows(sql.MOST_CONNECTIONS)[0]
        taken = int(self.rows(sql.CONNECTIONS)[0][1])
        left = int(most) - taken
        if not int(most_of_user):
            return left
        own = sum(1 for row in self.rows(sql.SESSIONS) if row[1] == user)
        return min(left, int(most_of_user) - own)

    def is_deadlock(self, error: OperationalError) -> bool:
        return error.args[0] in UNDONE

    def rows_of(self, statement: str, ids: Iterable[int], **parameters: Any) -> list[tuple[Any, ...]]:
        """What a statement reads about these ids, in their order: all transactions lock them alike."""
        chunks = batched(sorted(ids), ROWS)
        return [row for some in chunks for row in self.rows(statement, {"ids": json.dumps(some), **parameters})]

    def write_to(self, statement: str, ids: Iterable[int], **parameters: Any) -> None:
        """A statement about these ids."""
        for some in batched(sorted(ids), ROWS):
            self.write(statement, {"ids": json.dumps(some), **parameters})

    def write_given(self, statement: str, given: Iterable[list[Any]]) -> None:
        """A statement about these rows of values."""
        for some in packets(given, length, ROWS):
            self.write(statement, {"given": document(some)})

    def lock_to_delete(self, messages: Sequence[tuple[int, str, str | None]]) -> dict[int, tuple[int | None, int]]:
        """Lock those of these messages (id, kind, key) that are not locked; their tokens and generations."""
        rows = self.rows_of(sql.FREE, [id_ for id_, _, key in messages if key is None])
        names = sorted((kind, key) for _, kind, key in messages if key is not None)
        for some in batched(names, ROWS):
            rows += self.rows(sql.FREE_KEYS, {"names": document(some)})
        return {row[0]: (row[1], row[2]) for row in rows}

    def cancel(self, ids: Iterable[int], errors: str | None = None) -> None:
        """End as cancelled messages that the caller has locked."""
        self.write_to(sql.RECORD_CANCELLED, ids, errors=errors)
        self.write_to(sql.DELETE, ids)
