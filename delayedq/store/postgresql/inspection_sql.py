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
WHERE t.relname LIKE 'delayedq\\_%%' AND t.relnamespace = current_schema()::regnamespace AND NOT i.indisvalid
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
