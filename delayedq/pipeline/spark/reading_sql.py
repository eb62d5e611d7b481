"""The statements of the readers.

What is selected never becomes part of a statement. On SQLite and MySQL it is a parameter. On PostgreSQL it is a setting
of the transaction: a query with parameters is answered as one result, which has to fit into memory; one without them as
a stream (a COPY). The planner takes a setting for the constant that it is.
"""

from __future__ import annotations

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

# Rows ----------------------------------------------------------------------------------------------------------------

# A JSON list of names; no list allows all.
_AMONG = {
    "postgresql": """(current_setting('delayedq.{0}') = '' OR {1} = ANY(ARRAY(
        SELECT json_array_elements_text(nullif(current_setting('delayedq.{0}'), '')::json)
    )))""",
    "mysql": """(%({0})s = '' OR {1} IN (
        SELECT name FROM JSON_TABLE(%({0})s, '$[*]' COLUMNS (name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$')) AS given
    ))""",
    "sqlite": "(%({0})s = '' OR {1} IN (SELECT value FROM json_each(nullif(%({0})s, ''))))",
}

_RANGE = "id >= current_setting('delayedq.first')::bigint AND id < current_setting('delayedq.after')::bigint"

_WINDOW = {
    "postgresql": """finished_at >= current_setting('delayedq.since')::timestamptz
        AND finished_at < current_setting('delayedq.until')::timestamptz""",
    "mysql": "finished_at >= coalesce(%(since)s, '1000-01-01') AND finished_at < coalesce(%(until)s, '9999-12-31')",
    "sqlite": "finished_at >= coalesce(%(since)s, '') AND finished_at < coalesce(%(until)s, 'Z')",
}


def _among(vendor: str, table: str) -> str:
    columns = COLUMNS[vendor][table]
    return " AND ".join(
        _AMONG[vendor].format(*pair)
        for pair in (("states", columns["state"]), ("kinds", columns["kind"]), ("queues", columns["queue"]))
    )


# By engine and table: whether a row is selected.
SELECTED = {
    vendor: {LIVE: _among(vendor, LIVE), ENDED: f"{_among(vendor, ENDED)} AND {window}"}
    for vendor, window in _WINDOW.items()
}
SELECTED["postgresql"] = {table: f"{condition} AND {_RANGE}" for table, condition in SELECTED["postgresql"].items()}

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


def select(vendor: str, columns: list[str], tables: list[str], condition: str = "true") -> str:
    """The selected rows of these tables, with these columns."""
    return " UNION ALL ".join(
        f"SELECT {', '.join(COLUMNS[vendor][table][name] for name in columns)} FROM {table}"
        f" WHERE {SELECTED[vendor][table]} AND {condition}"
        for table in tables
    )


def quantiles(tables: list[str]) -> str:
    rows = " UNION ALL ".join(_SAMPLE.format(table, SELECTED["postgresql"][table]) for table in tables)
    return QUANTILES.format(rows=rows)
