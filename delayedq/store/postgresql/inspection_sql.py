"""What PostgreSQL tells of itself that makes a queue slow, for `manage.py delayedq doctor`."""

from __future__ import annotations

#: Sessions that hold a snapshot for more than so many seconds: what was deleted since can't be vacuumed.
PINNING = """
SELECT pid, coalesce(usename, ''), coalesce(state, ''), extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY xact_start LIMIT 10
"""

#: Indexes that a failed CREATE INDEX CONCURRENTLY has left: they are written, and no statement uses them.
INVALID = """
SELECT c.relname FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.oid = ANY(ARRAY(SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)) AND NOT i.indisvalid
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

#: Tables that are there, and their B-tree indexes, of so many bytes; and how many rows the table has, which vacuum and
#: statistics each know in their way: if they differ, the higher number.
LARGE = """
SELECT t.oid::regclass::text, c.oid::regclass::text, pg_relation_size(c.oid),
    greatest(t.reltuples, pg_stat_get_live_tuples(t.oid), 0)::float8, c.oid <> t.oid,
    coalesce(
        (SELECT split_part(option, '=', 2)::int FROM unnest(c.reloptions) AS option WHERE option LIKE 'fillfactor=%%'),
        CASE WHEN c.oid = t.oid THEN 100 ELSE 90 END
    ),
    coalesce(
        (SELECT 'ORDER BY ' || quote_ident(a.attname) FROM pg_index AS i
         JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = i.indkey[0]
         WHERE i.indrelid = t.oid AND i.indisprimary),
        ''
    )
FROM pg_class AS t
JOIN pg_class AS c ON c.oid = t.oid OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = t.oid)
WHERE t.oid = ANY(ARRAY(SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name))
    AND (c.oid = t.oid OR c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree'))
    AND pg_relation_size(c.oid) >= %(bytes)s
ORDER BY 3 DESC
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
