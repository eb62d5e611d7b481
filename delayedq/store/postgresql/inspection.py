"""Asks PostgreSQL what makes a queue slow. Reads catalogues and statistics only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.postgresql import inspection_sql as sql

if TYPE_CHECKING:
    from delayedq.store.database import Database


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


class Inspection:
    """Of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pinning(self, seconds: float) -> list[Pinning]:
        return [Pinning(*row) for row in self._database.rows(sql.PINNING, {"seconds": seconds})]

    def invalid_indexes(self) -> list[str]:
        return [name for (name,) in self._database.rows(sql.INVALID, {})]

    def table(self) -> TableState:
        (state,) = self._database.rows(sql.TABLE, {})
        return TableState(*state)
