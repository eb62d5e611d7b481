"""The statements of the readers.

What is selected never becomes part of a statement. On SQLite and MySQL it is a parameter. On PostgreSQL it is a setting
of the transaction: a query with parameters is answered as one result, which has to fit into memory; one without them as
a stream (a COPY). The planner takes a setting for the constant that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LIVE, ENDED = "delayedq_message", "delayedq_finishedmessage"

# Columns -------------------------------------------------------------------------------------------------------------

_LEASED = "lease_token IS NOT NULL AND leased_until > {now}"
_SAME = (
    "id", "queue", "kind", "priority", "max_attempts", "created_at", "scheduled_at_initially", "scheduled_at",
    "payload", "metadata", "errors",
)  # fmt: skip


def _live(now: str, key: str, no_text: str, no_time: str) -> dict[str, str]:
    return {name: name for name in _SAME} | {
        "state": f"CASE WHEN {_LEASED.format(now=now)} THEN 'leased' ELSE 'waiting' END",
        "worker": f"CASE WHEN {_LEASED.format(now=now)} THEN leased_by END",
        "attempts": "attempt",
        "key": key,
        "started_at": no_time,
        "finished_at": no_time,
        "result": no_text,
    }


def _ended(key: str) -> dict[str, str]:
    names = (*_SAME, "attempts", "started_at", "finished_at", "worker", "result")
    return {name: name for name in names} | {"state": "outcome", "key": key}


# By engine and table: what gives a column of `schema.MESSAGES`.
COLUMNS = {
    "postgresql": {
        LIVE: _live("statement_timestamp()", "key", "NULL::text", "NULL::timestamptz"),
        ENDED: _ended("key"),
    },
    "mysql": {LIVE: _live("UTC_TIMESTAMP(6)", "`key`", "NULL", "NULL"), ENDED: _ended("`key`")},
    "sqlite": {LIVE: _live("strftime('%Y-%m-%d %H:%M:%f', 'now')", "key", "NULL", "NULL"), ENDED: _ended("key")},
}

#: How many rows a table has, up to a number.
COUNT = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT %(most)s) AS found"

# Rows ----------------------------------------------------------------------------------------------------------------

# A JSON list of names.
_AMONG = {
    "postgresql": """{1} = ANY(ARRAY(
        SELECT json_array_elements_text(nullif(current_setting('delayedq.{0}'), '')::json)
    ))""",
    "mysql": """{1} IN (
        SELECT name FROM JSON_TABLE(%({0})s, '$[*]' COLUMNS (name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$')) AS given
    )""",
    "sqlite": "{1} IN (SELECT value FROM json_each(nullif(%({0})s, '')))",
}
_ALL = {"postgresql": "current_setting('delayedq.{0}') = ''", "mysql": "%({0})s = ''", "sqlite": "%({0})s = ''"}

_RANGE = "id >= current_setting('delayedq.first')::bigint AND id < current_setting('delayedq.after')::bigint"

_WINDOW = {
    "postgresql": """finished_at >= current_setting('delayedq.since')::timestamptz
        AND finished_at < current_setting('delayedq.until')::timestamptz""",
    "mysql": "finished_at >= coalesce(%(since)s, '1000-01-01') AND finished_at < coalesce(%(until)s, '9999-12-31')",
    "sqlite": "finished_at >= coalesce(%(since)s, '') AND finished_at < coalesce(%(until)s, 'Z')",
}


def _conditions(vendor: str, table: str) -> dict[str, tuple[str, str]]:
    """By the option: the condition if it was given, and the one that also holds if it was not."""
    columns = COLUMNS[vendor][table]
    found = {}
    for option, column in (("states", "state"), ("kinds", "kind"), ("queues", "queue")):
        among = _AMONG[vendor].format(option, columns[column])
        found[option] = (among, f"({_ALL[vendor].format(option)} OR {among})")
    if table == ENDED:
        found["window"] = (_WINDOW[vendor], _WINDOW[vendor])
    if vendor == "postgresql":
        found["range"] = (_RANGE, _RANGE)
    return found


_CONDITIONS = {vendor: {table: _conditions(vendor, table) for table in tables} for vendor, tables in COLUMNS.items()}

# By engine and table: whether a row is selected, whatever was given.
SELECTED = {
    vendor: {table: " AND ".join(either for _, either in found.values()) for table, found in tables.items()}
    for vendor, tables in _CONDITIONS.items()
}


def selected(vendor: str, table: str, given: Collection[str]) -> str:
    """Whether a row is selected by the options that were given, of `states`, `kinds`, `queues`, `window` and `range`.

    PostgreSQL looks a setting up for each row that it compares: all of them take longer than the row itself.
    """
    return " AND ".join(found for option, (found, _) in _CONDITIONS[vendor][table].items() if option in given) or "true"


# PostgreSQL: one snapshot for all readers ----------------------------------------------------------------------------

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
IMPORT = "SET TRANSACTION SNAPSHOT '{}'"
EXPORT = "SELECT pg_export_snapshot()"
#: A snapshot lives as long as its transaction, which waits for the readers.
STAY = "SET LOCAL idle_in_transaction_session_timeout = 0"
SET = "SELECT set_config('delayedq.' || name, value, true) FROM json_each_text({}::json) AS setting (name, value)"

# Ids that divide the selected rows into equal parts: those at `shares` among the rows of a thousand pages of each
# table. The least and the greatest id would not do: dead letters stay for years, far below all others.
_SAMPLE = (
    "SELECT id FROM {0} TABLESAMPLE SYSTEM (least(100, 1e5 / greatest(1, pg_relation_size('{0}') / 8192))) WHERE {1}"
)
QUANTILES = """
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id) FROM ({rows}) AS sample
"""


def select(vendor: str, columns: list[str], conditions: Mapping[str, str], condition: str = "true") -> str:
    """These columns of the rows that are selected, by the table that holds them."""
    return " UNION ALL ".join(
        f"SELECT {', '.join(COLUMNS[vendor][table][name] for name in columns)} FROM {table}"
        f" WHERE {selected} AND {condition}"
        for table, selected in conditions.items()
    )


def quantiles(tables: list[str]) -> str:
    rows = " UNION ALL ".join(_SAMPLE.format(table, SELECTED["postgresql"][table]) for table in tables)
    return QUANTILES.format(rows=rows)
