"""Find the messages that a message has made: their metadata name it as their parent.

PostgreSQL and SQLite have an index of the parents in the metadata (migration 0001), in which a message without a parent
has no entry. MySQL has no such index: a limited number of the messages that were stored after the parent is read there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.metadata import PARENT

if TYPE_CHECKING:
    from delayedq.store.database import Database

#: So many messages that were stored after the parent are read on MySQL.
BUDGET = 100_000

HAS_PARENT = f"""metadata LIKE '%%"{PARENT}":%%'"""
#: The parent as a text: neither expression fails, whatever other code has written into the column.
PARENT_OF = {
    "postgresql": f"""substring(metadata FROM '"{PARENT}":([0-9]+)')""",
    "sqlite": f"""CAST(substr(metadata, instr(metadata, '"{PARENT}":') + {len(PARENT) + 3}) AS INTEGER)""",
}
_FOUND = "SELECT id FROM {table} WHERE {has_parent} AND {parent_of} = %(parent)s ORDER BY id LIMIT %(limit)s"
_PARAMETER = {"postgresql": str, "sqlite": int}
_READ = """
SELECT id FROM (
    SELECT id, metadata FROM {table} WHERE id > %(after)s ORDER BY id LIMIT %(budget)s
) AS later
WHERE metadata LIKE %(middle)s OR metadata LIKE %(end)s
LIMIT %(limit)s
"""
TABLES = ("delayedq_message", "delayedq_finishedmessage")


class Made(NamedTuple):
    """The ids of the messages that a message has made, live and ended ones."""

    live: list[int]
    ended: list[int]


def made_by(database: Database, id_: int, limit: int = 100) -> Made:
    """What this message has made, the oldest first: at most `limit` of each."""
    return Made(*(_found(database, table, id_, limit) for table in TABLES))


def _found(database: Database, table: str, id_: int, limit: int) -> list[int]:
    vendor = database.connection.vendor
    if vendor == "mysql":
        name = f'%"{PARENT}":{id_}'
        parameters = {"after": id_, "budget": BUDGET, "middle": f"{name},%", "end": f"{name}}}%", "limit": limit}
        rows = database.rows(_READ.format(table=table), parameters)
    else:
        statement = _FOUND.format(table=table, has_parent=HAS_PARENT, parent_of=PARENT_OF[vendor])
        rows = database.rows(statement, {"parent": _PARAMETER[vendor](id_), "limit": limit})
    return [row[0] for row in rows]
