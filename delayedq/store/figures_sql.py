"""The statements behind the dashboard: one text for all databases, but for a few words by vendor.

Each reads the slices of a sample along an index, and counts by bucket: of `width` seconds, from `start` on.
"""

from __future__ import annotations

from typing import NamedTuple

# `place` numbers the latencies of each bucket in their order; what never started has none.
_ENDED = """
WITH ended AS (
    SELECT {ended_in} AS bucket, outcome, {latency} AS latency
    FROM {ended_then}
    WHERE outcome <> 'superseded'
),
ranked AS (
    SELECT bucket, outcome, latency, count(latency) OVER (PARTITION BY bucket) AS started,
        row_number() OVER (PARTITION BY bucket, latency IS NULL ORDER BY latency) AS place
    FROM ended
)
SELECT bucket, count(*), count(CASE WHEN outcome = 'failed' THEN 1 END),
    min(CASE WHEN place >= 0.50 * started THEN latency END), min(CASE WHEN place >= 0.95 * started THEN latency END)
FROM ranked GROUP BY bucket ORDER BY bucket
"""

# The dead letters have an index of their own.
_DEAD = """
SELECT {ended_in} AS bucket, count(*)
FROM {dead_then}
GROUP BY bucket ORDER BY bucket
"""

# What came in and has ended did both in the same span. A superseded attempt has an id of its own, but is no message.
_CREATED_ENDED = """
SELECT {created_in} AS bucket, count(*)
FROM {ended_then}
WHERE created_at >= {start} AND created_at < {end} AND outcome <> 'superseded'
GROUP BY bucket ORDER BY bucket
"""

# Creation times are in no index, but ids rise with them.
_CREATED_LIVE = """
SELECT {created_in} AS bucket, count(*)
FROM {live}
WHERE created_at >= {start} AND created_at < {end}
GROUP BY bucket ORDER BY bucket
"""

# Bucket -1 has what is overdue.
_FALLING_DUE = """
SELECT CASE WHEN scheduled_at < {start} THEN -1 ELSE {due_in} END AS bucket, count(*)
FROM {live}
WHERE scheduled_at < {end} AND (lease_token IS NULL OR leased_until <= {start})
GROUP BY bucket ORDER BY bucket
"""


class _Words(NamedTuple):
    #: The rows of a {table} whose {column}, of this {type}, lies in a slice: slice by slice, by its index.
    sliced: str
    #: The same for dead letters, by theirs, and nothing else of them.
    dead: str
    time_type: str
    bucket: str
    seconds: str
    instant: str


_WORDS = {
    "postgresql": _Words(
        # The order in each slice leaves the planner no other way.
        sliced="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT * FROM {table} WHERE {column} >= (slice->>0)::{type} AND {column} < (slice->>1)::{type}
        ORDER BY {column} OFFSET 0
    ) AS message""",
        dead="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT finished_at FROM delayedq_finishedmessage WHERE outcome = 'failed'
            AND finished_at >= (slice->>0)::timestamptz AND finished_at < (slice->>1)::timestamptz
        ORDER BY finished_at OFFSET 0
    ) AS message""",
        time_type="timestamptz",
        bucket="floor(extract(epoch FROM {time} - %(start)s::timestamptz) / %(width)s)::int",
        seconds="extract(epoch FROM {later} - {earlier})::float8",
        instant="%({})s::timestamptz",
    ),
    "sqlite": _Words(
        # CROSS JOIN: the slices come first, whatever the planner thinks.
        sliced="""json_each(%(slices)s) AS slice CROSS JOIN {table} AS message
    ON message.{column} >= json_extract(slice.value, '$[0]') AND message.{column} < json_extract(slice.value, '$[1]')
    """,
        dead="""json_each(%(slices)s) AS slice CROSS JOIN delayedq_finishedmessage AS message INDEXED BY delayedq_dead
    ON finished_at >= json_extract(slice.value, '$[0]') AND finished_at < json_extract(slice.value, '$[1]')
    AND outcome = 'failed'
    """,
        time_type="",
        bucket="(strftime('%%s', {time}) - strftime('%%s', %(start)s)) / %(width)s",
        seconds="round((julianday({later}) - julianday({earlier})) * 86400, 3)",
        instant="%({})s",
    ),
    "mysql": _Words(
        sliced="""JSON_TABLE(%(slices)s, '$[*]' COLUMNS (low {type} PATH '$[0]', high {type} PATH '$[1]')) AS slice
    STRAIGHT_JOIN {table} AS message ON message.{column} >= slice.low AND message.{column} < slice.high
    """,
        dead="",  # it has no such index
        time_type="DATETIME(6)",
        bucket="TIMESTAMPDIFF(SECOND, CAST(%(start)s AS DATETIME(6)), {time}) DIV %(width)s",
        seconds="TIMESTAMPDIFF(MICROSECOND, {earlier}, {later}) / 1e6",
        instant="CAST(%({})s AS DATETIME(6))",
    ),
}


def _in_words(template: str, words: _Words) -> str:
    return template.format(
        ended_then=words.sliced.format(table="delayedq_finishedmessage", column="finished_at", type=words.time_type),
        dead_then=words.dead,
        live=words.sliced.format(table="delayedq_message", column="id", type="bigint"),
        start=words.instant.format("start"),
        end=words.instant.format("end"),
        latency=words.seconds.format(later="started_at", earlier="scheduled_at"),
        ended_in=words.bucket.format(time="finished_at"),
        created_in=words.bucket.format(time="created_at"),
        due_in=words.bucket.format(time="scheduled_at"),
    )


def _by_vendor(template: str) -> dict[str, str]:
    return {vendor: _in_words(template, words) for vendor, words in _WORDS.items()}


ENDED = _by_vendor(_ENDED)
DEAD = _by_vendor(_DEAD)
CREATED_LIVE = _by_vendor(_CREATED_LIVE)
CREATED_ENDED = _by_vendor(_CREATED_ENDED)
FALLING_DUE = _by_vendor(_FALLING_DUE)

# PostgreSQL would take longer to compile one of these than to run it.
PREPARE = {"postgresql": "SET LOCAL jit = off"}
