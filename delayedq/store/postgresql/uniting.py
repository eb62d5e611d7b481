"""The way back from a history in partitions: one table again, as it was before.

The largest partition becomes that table, and the rows of the others are copied into it, under a lock that ends of
messages and all readers of the history wait for: 100,000 rows take about half a second. It is one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.store.online import patiently
from delayedq.store.postgresql.partitions import (
    ANALYZE,
    DETACH,
    GRANTS,
    LOCK,
    NO_TIMEOUT,
    RENAME_INDEX,
    TABLE,
    State,
    drop_rule,
    give,
    refuse_dependents,
    state_of,
)
from delayedq.store.postgresql.sql import PARTITIONS_LOCK
from delayedq.store.protocol import PartitionChange, PartitionStep

if TYPE_CHECKING:
    from delayedq.store.database import Database

LARGEST = """
SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %(table)s::regclass
ORDER BY pg_relation_size(oid) DESC, relname LIMIT 1
"""
OTHERS = "SELECT count(*) FROM {table} WHERE tableoid <> %(part)s::regclass"
COPY = "INSERT INTO {part} SELECT * FROM {table}"
DROP = "DROP TABLE {table}"
RENAME = "ALTER TABLE {part} RENAME TO delayedq_finishedmessage"

#: The indexes of a partition, and how the table that it becomes has them named.
INDEXES = """
SELECT part.indexrelid::regclass::text, quote_ident(whole.relname) FROM pg_index AS part
JOIN pg_inherits ON inhrelid = part.indexrelid JOIN pg_class AS whole ON whole.oid = inhparent
WHERE part.indrelid = %(part)s::regclass
UNION ALL
SELECT indexrelid::regclass::text, 'delayedq_finishedmessage_pkey' FROM pg_index JOIN pg_class ON oid = indexrelid
WHERE indrelid = %(part)s::regclass AND indisprimary AND relname <> 'delayedq_finishedmessage_pkey'
"""


def rows_to_copy(database: Database) -> int | None:
    """See `Store.rows_to_unite`."""
    state = state_of(database)
    if state is None or not state.is_partitioned:
        return None
    return int(database.rows(OTHERS.format(table=state.table), {"part": _largest(database, state)})[0][0])


def unite(database: Database) -> PartitionChange | None:
    """See `Store.unite_history`."""
    state = state_of(database)
    if state is None or not state.is_partitioned:
        return None
    refuse_dependents(database, state)
    patiently(database, lambda: _unite(database))
    with database.atomic():
        database.write(NO_TIMEOUT)
        database.write(ANALYZE.format(table=state.table))
    return PartitionChange(PartitionStep.UNITED, TABLE)


def _largest(database: Database, state: State) -> str:
    return state.named(database.rows(LARGEST, {"table": state.table})[0][0])


def _unite(database: Database) -> None:
    """In a transaction. Another process may have done it."""
    database.rows(PARTITIONS_LOCK)
    state = state_of(database)
    if state is None or not state.is_partitioned:
        return
    database.write(LOCK.format(table=state.table))
    database.write(NO_TIMEOUT)
    if state.rule is not None:  # of a month that a lease keeper was about to make
        drop_rule(database, state)
    part = _largest(database, state)
    indexes = database.rows(INDEXES, {"part": part})
    grants = database.rows(GRANTS, {"table": state.table})
    database.write(DETACH.format(table=state.table, part=part))
    for statement in (COPY, DROP, RENAME):
        database.write(statement.format(table=state.table, part=part))
    for index, name in indexes:
        database.write(RENAME_INDEX.format(index=index, name=name))
    give(database, state.table, state.owner, grants)
