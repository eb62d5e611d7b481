"""Asks PostgreSQL what makes a queue slow. Reads catalogues and statistics only."""

from __future__ import annotations

from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.connecting import separate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.database import Database

# What PostgreSQL tells of itself that makes a queue slow, for `manage.py delayedq doctor`.


#: Sessions that hold a snapshot for more than so many seconds: what was deleted since can't be vacuumed.
PINNING = """
SELECT pid, coalesce(usename, ''), coalesce(state, ''), extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY xact_start LIMIT 10
"""

#: The numbers of tables that are there, and of their partitions.
TABLES = """
ARRAY(
    SELECT given.oid FROM unnest(%(tables)s::text[]) AS name, LATERAL (SELECT to_regclass(name)) AS given (oid)
    UNION ALL
    SELECT part.oid FROM unnest(%(tables)s::text[]) AS name
    JOIN pg_inherits ON inhparent = to_regclass(name) JOIN pg_class AS part ON part.oid = inhrelid
    WHERE part.relispartition
)
"""

#: Indexes that a failed CREATE INDEX CONCURRENTLY has left: they are written, and no statement uses them. That of a
#: whole table of partitions is used by none.
INVALID = f"""
SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY({TABLES}) AND NOT i.indisvalid AND c.relkind = 'i'
ORDER BY c.relname
"""

#: Of the live table: its options, and how many rows are live, dead, updated, and updated in place (heap-only).
TABLE = """
SELECT coalesce(array_to_string(c.reloptions, ','), ''), s.n_live_tup, s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd,
    extract(epoch FROM now() - coalesce(s.last_autovacuum, s.last_vacuum))::float8,
    current_setting('autovacuum')::bool AND current_setting('track_counts')::bool
FROM pg_class AS c JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.oid = 'delayedq_message'::regclass
"""

STANDBY = "SELECT pg_is_in_recovery()"

USER = "SELECT quote_ident(current_user)"

PID = "SELECT pg_backend_pid()"

#: Sessions of other users whose state is not shown to this one.
HIDDEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type IS NULL
"""

#: Tables that are there, and their B-tree indexes; of those in partitions the parts. The whole takes so many bytes. How
#: many rows a table has, vacuum and statistics know each in their way: if they differ, the higher number.
LARGE = f"""
SELECT * FROM (
    SELECT coalesce(part.inhparent, c.oid)::regclass::text AS whole, t.oid::regclass::text, c.oid::regclass::text,
        pg_relation_size(c.oid), greatest(t.reltuples, pg_stat_get_live_tuples(t.oid), 0)::float8, c.oid <> t.oid,
        coalesce(
            (SELECT split_part(option, '=', 2)::int FROM unnest(c.reloptions) AS option
             WHERE option LIKE 'fillfactor=%%'),
            CASE WHEN c.oid = t.oid THEN 100 ELSE 90 END
        ),
        coalesce(
            (SELECT 'ORDER BY ' || quote_ident(a.attname) FROM pg_index AS i
             JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = i.indkey[0]
             WHERE i.indrelid = t.oid AND i.indisprimary),
            ''
        ),
        sum(pg_relation_size(c.oid)) OVER (PARTITION BY coalesce(part.inhparent, c.oid))::bigint AS size
    FROM pg_class AS t
    JOIN pg_class AS c ON c.oid = t.oid OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = t.oid)
    LEFT JOIN pg_inherits AS part ON part.inhrelid = c.oid
    WHERE t.oid = ANY({TABLES}) AND t.relkind = 'r'
        AND (c.oid = t.oid OR c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree'))
) AS found
WHERE size >= %(bytes)s ORDER BY size DESC, whole
"""

#: The average width of a row, of the first thousand: by the primary key, if any, so that no empty page is read.
WIDTH = """
SELECT coalesce(avg(pg_column_size(first.*)), 0)::float8
FROM (SELECT * FROM {table} {order} LIMIT 1000) AS first
"""

#: How many rows there are, up to a number: statistics forget it in a crash, and know nothing of the last second.
COUNTED = "SELECT count(*) FROM (SELECT FROM {table} {order} LIMIT %(most)s) AS counted"

#: The schema of pgstattuple, where its functions may be called. Privileges are asked for by oid: a name that is
#: unknown would be an error, and the planner may ask before it joins.
TUPLES = """
SELECT quote_ident(n.nspname) FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = 'pgstattuple' AND has_schema_privilege(n.oid, 'USAGE') AND (
    SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc AS p
    WHERE p.pronamespace = n.oid AND p.proname IN ('pgstattuple_approx', 'pgstatindex')
)
"""

FILLED = "SELECT approx_tuple_len::float8 FROM {schema}.pgstattuple_approx(%(name)s::regclass)"

FILLED_INDEX = """
SELECT leaf_pages * current_setting('block_size')::float8 * coalesce(nullif(avg_leaf_density, 'NaN'), 0) / 100
FROM {schema}.pgstatindex(%(name)s::regclass)
"""

# Cures that people run.
LEAVE_ROOM = "ALTER TABLE delayedq_message SET (fillfactor = 45)"

LEAVE_IT_ON = "ALTER TABLE delayedq_message RESET (autovacuum_enabled)"


# Inspection


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


class Part(NamedTuple):
    """A table or an index: the whole, or its part in a partition. `rows`: of the table. `fillfactor`: in percent."""

    whole: str
    table: str
    name: str
    bytes: int
    rows: float
    is_index: bool
    fillfactor: int
    order: str
    size: int


class Oversized(NamedTuple):
    """A table or an index, with all its partitions, that takes many times the bytes that its rows need."""

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
        return [Pinning(*row) for row in self._database.rows(PINNING, {"seconds": seconds})]

    def hidden_sessions(self) -> int:
        """How many sessions of this database this user may not look at."""
        return int(self._database.rows(HIDDEN)[0][0])

    def user(self) -> str:
        """As SQL has it."""
        return str(self._database.rows(USER)[0][0])

    def is_standby(self) -> bool:
        return bool(self._database.rows(STANDBY)[0][0])

    def shares_sessions(self) -> bool:
        """Whether a second connection gets the session of this one while both are open: a pooler gives it out."""
        mine, other = self._database.rows(PID), separate(self._database.alias)
        try:
            with other.cursor() as cursor:
                cursor.execute(PID)
                return bool(cursor.fetchall() == mine)
        finally:
            other.close()

    def invalid_indexes(self, tables: Sequence[str]) -> list[str]:
        return [name for (name,) in self._database.rows(INVALID, {"tables": list(tables)})]

    def oversized(self, tables: Sequence[str], least: int, times: float) -> list[Oversized]:
        """Of these tables and their indexes, those of at least so many bytes, and so many times what they need.

        What they need is measured where pgstattuple may be asked, and else estimated: an index has columns of its
        table, so its entries need no more than the rows.
        """
        asked = {"tables": list(tables), "bytes": least}
        extension = next(iter(self._database.rows(TUPLES)), None)
        found = []
        rows = (Part._make(row) for row in self._database.rows(LARGE, asked))
        for whole, group in groupby(rows, key=attrgetter("whole")):
            parts = [*group]
            most = sum(part.bytes * part.fillfactor / 100 for part in parts) / times
            if extension is None:
                used = self._estimated(parts, most)
            else:
                used = [self._measured(part, extension[0]) for part in parts]
            if sum(used) < most:
                needed = sum(one * 100 / part.fillfactor for one, part in zip(used, parts, strict=True))
                found.append(Oversized(whole, parts[0].size, needed, parts[0].is_index))
        return found

    def _estimated(self, parts: Sequence[Part], most: float) -> list[float]:
        """The bytes of the rows of each, by their numbers; if all seem less than `most`, they are counted."""
        widths = [self._width(part) for part in parts]
        used = [part.rows * width for part, width in zip(parts, widths, strict=True)]
        for number, (part, width) in enumerate(zip(parts, widths, strict=True)):
            if sum(used) >= most:
                break
            counted = COUNTED.format(table=part.table, order=part.order)
            used[number] = self._database.rows(counted, {"most": ceil(most / width)})[0][0] * width
        return used

    def _width(self, part: Part) -> float:
        """The bytes of a row."""
        return float(self._database.rows(WIDTH.format(table=part.table, order=part.order))[0][0]) + ROW

    def _measured(self, part: Part, schema: str) -> float:
        statement = FILLED_INDEX if part.is_index else FILLED
        return float(self._database.rows(statement.format(schema=schema), {"name": part.name})[0][0])

    def table(self) -> TableState:
        (state,) = self._database.rows(TABLE, {})
        return TableState(*state)
