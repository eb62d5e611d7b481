"""How a lease keeper says that its workers live, by the vendor of the database.

The workers are one JSON document. `now` may be NULL, for the database's clock.
"""

from __future__ import annotations

_INSERT = """
INSERT INTO delayedq_worker (name, host, pid, threads, queues, lease, held, running, started_at, seen_at)
"""
_GIVEN = ("name", "host", "pid", "threads", "queues", "lease", "held", "running")
_COLUMNS = ", ".join(f"given.{name}" for name in _GIVEN)
_RENEWED = (*_GIVEN[1:], "started_at", "seen_at")
_ON_CONFLICT = f"ON CONFLICT (name) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _RENEWED)}"

_ON_POSTGRESQL = f"""
{_INSERT}
SELECT {_COLUMNS}, clock.moment - given.age * interval '1 second', clock.moment
FROM json_to_recordset(%(workers)s::json) AS given (
    name text, host text, pid int, threads int, queues text, lease float8, held int, running text, age float8
), (SELECT coalesce(%(now)s::timestamptz, statement_timestamp()) AS moment) AS clock
{_ON_CONFLICT}
"""

_TEXT = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {})"
_ON_SQLITE = f"""
{_INSERT}
SELECT {", ".join(f"json_extract(given.value, '$.{name}')" for name in _GIVEN)},
    {_TEXT.format("clock.moment, '-' || json_extract(given.value, '$.age') || ' seconds'")},
    {_TEXT.format("clock.moment")}
FROM json_each(%(workers)s) AS given, (SELECT coalesce(%(now)s, 'now') AS moment) AS clock
WHERE true
{_ON_CONFLICT}
"""

_NAME, _TEXTS = "VARCHAR(200) CHARACTER SET utf8mb4", "LONGTEXT CHARACTER SET utf8mb4"
_ON_MYSQL = f"""
{_INSERT}
SELECT {_COLUMNS}, clock.moment - INTERVAL given.age * 1e6 MICROSECOND, clock.moment
FROM JSON_TABLE(%(workers)s, '$[*]' COLUMNS (
    name {_NAME} PATH '$.name', host {_NAME} PATH '$.host', pid INT PATH '$.pid', threads INT PATH '$.threads',
    queues {_TEXTS} PATH '$.queues', lease DOUBLE PATH '$.lease', held INT PATH '$.held',
    running {_TEXTS} PATH '$.running', age DOUBLE PATH '$.age'
)) AS given, (SELECT coalesce(CAST(%(now)s AS DATETIME(6)), UTC_TIMESTAMP(6)) AS moment) AS clock
ON DUPLICATE KEY UPDATE {", ".join(f"{name} = VALUES({name})" for name in _RENEWED)}
"""

ATTEND = {"postgresql": _ON_POSTGRESQL, "sqlite": _ON_SQLITE, "mysql": _ON_MYSQL}
