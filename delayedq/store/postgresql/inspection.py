"""Asks PostgreSQL what makes a queue slow. Reads catalogues and statistics only."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.connecting import separate
from delayedq.store.postgresql import inspection_sql as sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.database import Database

#: Bytes that a row takes beside its columns.
ROW = 28


class Pinning(NamedTuple):
    """A session whose transaction keeps dead rows from being vacuumed. `seconds`: since its transaction began."""

    pid: int
    user: str
    state: str
    seconds: float


class TableState(NamedTuple):
    """Of the live table. `options`: as `fillfactor=45,autovacuum_enabled=false`. `vacuumed`: seconds ago; None: never.

    `autovacuum`: whether the server has it on.
    """

    options: str
    live: int
    dead: int
    updated: int
    heap_only: int
    vacuumed: float | None
    autovacuum: bool

    def option(self, name: str) -> str:
        """The value of a storage parameter; "" if it is not set."""
        return dict(one.split("=", 1) for one in self.options.split(",") if one).get(name, "")


class Oversized(NamedTuple):
    """A table or an index that takes many times the bytes that its rows need."""

    name: str
    size: int
    needed: float
    is_index: bool


class Inspection:
    """Of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.alias = database.alias

    def pinning(self, seconds: float) -> list[Pinning]:
        return [Pinning(*row) for row in self._database.rows(sql.PINNING, {"seconds": seconds})]

    def hidden_sessions(self) -> int:
        """How many sessions of this database this user may not look at."""
        return int(self._database.rows(sql.HIDDEN)[0][0])

    def user(self) -> str:
        """As SQL has it."""
        return str(self._database.rows(sql.USER)[0][0])

    def is_standby(self) -> bool:
        return bool(self._database.rows(sql.STANDBY)[0][0])

    def shares_sessions(self) -> bool:
        """Whether a second connection gets the session of this one while both are open: a pooler gives it out."""
        mine, other = self._database.rows(sql.PID), separate(self._database.alias)
        try:
            with other.cursor() as cursor:
                cursor.execute(sql.PID)
                return bool(cursor.fetchall() == mine)
        finally:
            other.close()

    def invalid_indexes(self, tables: Sequence[str]) -> list[str]:
        return [name for (name,) in self._database.rows(sql.INVALID, {"tables": list(tables)})]

    def oversized(self, tables: Sequence[str], least: int, times: float) -> list[Oversized]:
        """Of these tables and their indexes, those of at least so many bytes, and so many times what they need.

        What they need is measured where pgstattuple may be asked, and else estimated: an index has columns of its
        table, so its entries need no more than the rows.
        """
        asked = {"tables": list(tables), "bytes": least}
        extension = next(iter(self._database.rows(sql.TUPLES)), None)
        found = []
        for table, name, size, rows, is_index, fillfactor, order in self._database.rows(sql.LARGE, asked):
            most = size * fillfactor / 100 / times
            if extension is None:
                used = self._estimated(table, order, rows, most)
            else:
                used = self._measured(name, extension[0], is_index)
            if used < most:
                found.append(Oversized(name, size, used * 100 / fillfactor, is_index))
        return found

    def _estimated(self, table: str, order: str, rows: float, most: float) -> float:
        """The bytes of the rows, by their number; if that seems less than `most`, they are counted up to that."""
        ((columns,),) = self._database.rows(sql.WIDTH.format(table=table, order=order))
        width = columns + ROW
        if rows * width < most:
            asked = {"most": ceil(most / width)}
            ((rows,),) = self._database.rows(sql.COUNTED.format(table=table, order=order), asked)
        return float(rows * width)

    def _measured(self, name: str, schema: str, is_index: bool) -> float:
        statement = sql.FILLED_INDEX if is_index else sql.FILLED
        return float(self._database.rows(statement.format(schema=schema), {"name": name})[0][0])

    def table(self) -> TableState:
        (state,) = self._database.rows(sql.TABLE, {})
        return TableState(*state)
