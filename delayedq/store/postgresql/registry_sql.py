"""The heartbeat of worker processes on PostgreSQL."""

from __future__ import annotations

from delayedq.store import registry_sql
from delayedq.store.postgresql.sql import NOW

HEARTBEAT = f"""
{registry_sql.INSERT}
SELECT {registry_sql.COLUMNS}, clock.moment - given.age * interval '1 second', clock.moment
FROM json_to_recordset(%(workers)s::json) AS given (
    name text, host text, pid int, threads int, queues text, excluded_queues text, lease float8, held int, running text,
    problems text, age float8
), (SELECT {NOW} AS moment) AS clock
{registry_sql.ON_CONFLICT}
"""
