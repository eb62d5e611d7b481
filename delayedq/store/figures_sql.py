"""The statements behind the dashboard: one text for all databases, but for a few words by vendor.

Each reads the slices of a sample along an index, and counts by bucket: of `width` seconds, from `start` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.core.channels import METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.dialect import Dialect

# `place` numbers the latencies of each bucket in their order; what never started has none. Messages with a channel may
# have waited for a limit: theirs are numbered apart.
ENDED = """
WITH ended AS (
    SELECT {ended_in} AS bucket, outcome, {latency} AS latency, CASE WHEN {limited} THEN 1 ELSE 0 END AS limited
    FROM {ended_then}
    WHERE outcome <> 'superseded' {only}
),
ranked AS (
    SELECT bucket, outcome, latency, limited, count(latency) OVER (PARTITION BY bucket, limited) AS started,
        row_number() OVER (PARTITION BY bucket, limited, latency IS NULL ORDER BY latency) AS place
    FROM ended
)
SELECT bucket, count(*), count(CASE WHEN outcome = 'failed' THEN 1 END),
    min(CASE WHEN limited = 0 AND place >= 0.50 * started THEN latency END),
    min(CASE WHEN limited = 0 AND place >= 0.95 * started THEN latency END),
    min(CASE WHEN limited = 1 AND place >= 0.95 * started THEN latency END)
FROM ranked GROUP BY bucket ORDER BY bucket
"""

# The same by task and by queue, with how long the last attempts ran. `by_wait` and `by_run` number those that started.
_DURATIONS = """
WITH ended AS (
    SELECT {group} AS name, outcome, {{latency}} AS wait, {{run}} AS run
    FROM {{ended_then}}
    WHERE outcome <> 'superseded'
),
ranked AS (
    SELECT name, outcome, wait, run, count(run) OVER (PARTITION BY name) AS started,
        row_number() OVER (PARTITION BY name, run IS NULL ORDER BY wait) AS by_wait,
        row_number() OVER (PARTITION BY name, run IS NULL ORDER BY run) AS by_run
    FROM ended
)
SELECT name, count(*), count(CASE WHEN outcome = 'failed' THEN 1 END),
    min(CASE WHEN by_wait >= 0.50 * started THEN wait END), min(CASE WHEN by_wait >= 0.95 * started THEN wait END),
    min(CASE WHEN by_run >= 0.50 * started THEN run END), min(CASE WHEN by_run >= 0.95 * started THEN run END), max(run)
FROM ranked GROUP BY name ORDER BY count(*) DESC, name LIMIT %(limit)s
"""
DURATIONS_OF_TASKS = _DURATIONS.format(group="message.kind")
DURATIONS_OF_QUEUES = _DURATIONS.format(group="message.queue")

# The dead letters have an index of their own.
DEAD = """
SELECT {ended_in} AS bucket, count(*)
FROM {dead_then}
GROUP BY bucket ORDER BY bucket
"""

# What came in and has ended did both in the same span. A superseded attempt has an id of its own, but is no message.
CREATED_ENDED = """
SELECT {created_in} AS bucket, count(*)
FROM {ended_then}
WHERE created_at >= {start} AND created_at < {end} AND outcome <> 'superseded' {only}
GROUP BY bucket ORDER BY bucket
"""

# Creation times are in no index, but ids rise with them.
CREATED_LIVE = """
SELECT {created_in} AS bucket, count(*)
FROM {live}
WHERE created_at >= {start} AND created_at < {end} {only}
GROUP BY bucket ORDER BY bucket
"""

# Bucket -1 has what is overdue.
FALLING_DUE = """
SELECT CASE WHEN scheduled_at < {start} THEN -1 ELSE {due_in} END AS bucket, count(*)
FROM {live}
WHERE scheduled_at < {end} AND (lease_token IS NULL OR leased_until <= {start} AND NOT EXISTS (
    SELECT 1 FROM delayedq_lockedrenewal AS renewal
    WHERE renewal.message_id = message.id AND renewal.lease_token = message.lease_token
        AND renewal.leased_until > {start}
))
GROUP BY bucket ORDER BY bucket
"""

# By their places, which know of no other lease than their own.
WAITING_IN_CHANNELS = """
SELECT group_id, channel_id, CASE WHEN due_at < {start} THEN -1 ELSE {place_due_in} END AS bucket, count(*)
FROM {places}
WHERE lease_token = 0 AND due_at < {end}
GROUP BY group_id, channel_id, bucket
"""


#: Of one task, or of one queue.
ONLY = {"kind": "AND message.kind = %(kind)s", "queue": "AND message.queue = %(queue)s"}


def in_words(template: str, dialect: Dialect, only: Iterable[str] = ()) -> str:
    """One of the statements above, in the words of a database. `only`: which of ONLY it asks."""
    return template.format(
        only=" ".join(ONLY[name] for name in only),
        ended_then=dialect.sliced.format(
            table="delayedq_finishedmessage", column="finished_at", type=dialect.time_type
        ),
        dead_then=dialect.dead,
        live=dialect.sliced.format(table="delayedq_message", column="id", type="bigint"),
        places=dialect.sliced.format(table="delayedq_channelmessage", column="message_id", type="bigint"),
        start=dialect.moment.format("start"),
        end=dialect.moment.format("end"),
        limited=f"message.metadata LIKE '%%\"{METADATA_KEY}\"%%'",
        latency=dialect.seconds.format(later="started_at", earlier="scheduled_at"),
        run=dialect.seconds.format(later="finished_at", earlier="started_at"),
        ended_in=dialect.bucket.format(time="finished_at"),
        created_in=dialect.bucket.format(time="created_at"),
        place_due_in=dialect.bucket.format(time="due_at"),
        due_in=dialect.bucket.format(time="scheduled_at"),
    )
