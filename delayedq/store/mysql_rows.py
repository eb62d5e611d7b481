"""What the verbs on MariaDB and MySQL are made of: statements about many messages, given as JSON documents."""

from __future__ import annotations

import json
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.store import mysql_sql as sql
from delayedq.store.mysql_values import document, length, packets, text
from delayedq.store.walks import Walks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

#: A statement names at most so many rows.
ROWS = 1_000


class MySQLRows(Walks):
    def _write(self, statement: str, parameters: dict[str, Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    def _rows_of(self, statement: str, ids: Iterable[int], **parameters: Any) -> list[tuple[Any, ...]]:
        """What a statement reads about these ids, in their order: who locks rows locks them alike."""
        chunks = batched(sorted(ids), ROWS)
        return [row for some in chunks for row in self._rows(statement, {"ids": json.dumps(some), **parameters})]

    def _write_to(self, statement: str, ids: Iterable[int], **parameters: Any) -> None:
        for some in batched(sorted(ids), ROWS):
            self._write(statement, {"ids": json.dumps(some), **parameters})

    def _write_given(self, statement: str, given: Iterable[list[Any]], now: datetime | None) -> None:
        for some in packets(given, length, ROWS):
            self._write(statement, {"given": document(some), "now": text(now)})

    def _lock_to_delete(self, messages: Sequence[tuple[int, str, str | None]]) -> dict[int, tuple[int | None, int]]:
        """Lock those of these messages (id, kind, key) that nobody has locked; their tokens and generations."""
        rows = self._rows_of(sql.FREE, [id_ for id_, _, key in messages if key is None])
        names = sorted((kind, key) for _, kind, key in messages if key is not None)
        for some in batched(names, ROWS):
            rows += self._rows(sql.FREE_KEYS, {"names": document(some)})
        return {row[0]: (row[1], row[2]) for row in rows}

    def _cancel(self, ids: Iterable[int], errors: str | None, now: datetime | None) -> None:
        self._write_to(sql.RECORD_CANCELLED, ids, errors=errors, now=text(now))
        self._write_to(sql.DELETE, ids)
