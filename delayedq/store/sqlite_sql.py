"""The statements of the store on SQLite. Times are texts in UTC, as Django writes them."""

from __future__ import annotations

from delayedq.store.offers import CONFLICT, INSERT, RETURNING

JOURNAL_MODE = "PRAGMA journal_mode"
FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
DATA_VERSION = "PRAGMA data_version"

OFFER_COLUMNS = ("queue", "kind", "key", "priority", "max_attempts", "payload", "metadata")

_OFFER = f"""
{INSERT}
VALUES (
    %(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s,
    %(scheduled_at)s, %(scheduled_at)s, %(now)s, 0, 0
)
{{conflict}}
{RETURNING}
"""
OFFER = {policy: _OFFER.format(conflict=clause) for policy, clause in CONFLICT.items()}

# A loose scan of the due index: one probe per queue, and one per priority in it.
_ALL_LANES = """
WITH RECURSIVE name (queue) AS (
    SELECT min(queue) FROM delayedq_message
    UNION ALL
    SELECT (SELECT min(queue) FROM delayedq_message AS message WHERE message.queue > name.queue)
    FROM name WHERE queue IS NOT NULL
),
lane (queue, priority) AS (
    SELECT queue, (SELECT min(priority) FROM delayedq_message AS message WHERE message.queue = name.queue)
    FROM name WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(priority) FROM delayedq_message AS message
        WHERE message.queue = lane.queue AND message.priority > lane.priority
    )
    FROM lane WHERE priority IS NOT NULL
)
"""
LANES = f"{_ALL_LANES} SELECT queue, priority FROM lane WHERE priority IS NOT NULL ORDER BY queue, priority"

_OPEN = "queue NOT IN (SELECT queue FROM delayedq_pausedqueue)"

# Then one probe per lane for its first free row.
LOOK = f"""
{_ALL_LANES}
SELECT queue, priority, first_at FROM (
    SELECT queue, priority, (
        SELECT scheduled_at FROM delayedq_message AS message
        WHERE message.queue = lane.queue AND message.priority = lane.priority
            AND (message.lease_token IS NULL OR message.leased_until <= %(now)s)
        ORDER BY scheduled_at LIMIT 1
    ) AS first_at
    FROM lane WHERE priority IS NOT NULL AND {_OPEN}
)
WHERE first_at IS NOT NULL
"""

GLANCE = f"""
SELECT scheduled_at FROM delayedq_message
WHERE queue = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(floor)s
    AND (lease_token IS NULL OR leased_until <= %(now)s) AND {_OPEN}
ORDER BY scheduled_at LIMIT 1
"""

# One range of the due index.
_DUE = f"""
SELECT id FROM delayedq_message
WHERE queue = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(floor)s AND scheduled_at <= %(now)s
    AND (lease_token IS NULL OR leased_until <= %(now)s) AND {_OPEN}
ORDER BY scheduled_at, id
"""
IS_DUE = f"{_DUE} LIMIT 1"

_CLAIM = """
UPDATE delayedq_message
SET lease_token = %(token)s, leased_until = %(until)s, leased_by = %(worker)s, attempt = attempt + 1
WHERE {which}
RETURNING id, lease_token, generation, queue, kind, key, priority, attempt, max_attempts,
    scheduled_at, scheduled_at_initially, created_at, payload, metadata, errors
"""
CLAIM = _CLAIM.format(which=f"id IN ({_DUE} LIMIT %(limit)s)")

# JSON in which every escape of a character stands for its own letters, those of a backslash for two control
# characters: SQLite's texts end at a NUL, which a payload may hold.
_READABLE = r"replace(replace({}, '\\', '\b\f'), '\u', '\\u')"

# The conditions are an object of values by path; the type tells true from 1, and null from nothing.
_MATCHES = f"""
CASE WHEN json_valid({_READABLE.format("payload")}) THEN NOT EXISTS (
    SELECT 1 FROM json_each({_READABLE.format("%(conditions)s")}) AS wanted
    WHERE json_type({_READABLE.format("payload")}, wanted.key) IS NOT wanted.type
        OR json_extract({_READABLE.format("payload")}, wanted.key) IS NOT wanted.value
) ELSE 0 END
"""
_DUE_MATCHING = _DUE.replace("ORDER BY", f"AND {_MATCHES}\nORDER BY")
IS_DUE_MATCHING = f"{_DUE_MATCHING} LIMIT 1"
CLAIM_MATCHING = _CLAIM.format(which=f"id IN ({_DUE_MATCHING} LIMIT %(limit)s)")

CLAIM_UNCHANGED = _CLAIM.format(
    which="id = %(id)s AND generation = %(generation)s AND (lease_token IS NULL OR leased_until <= %(now)s)"
)

HISTORY = """
INSERT INTO delayedq_finishedmessage (
    id, finished_at, started_at, scheduled_at, scheduled_at_initially, created_at, priority, attempts, max_attempts,
    outcome, queue, kind, key, worker, payload, metadata, result, errors
)
"""

RECORD = f"""
{HISTORY}
SELECT id, %s, %s, scheduled_at, scheduled_at_initially, created_at, priority, attempt - %s, max_attempts,
    %s, queue, kind, key, leased_by, payload, metadata, %s, coalesce(%s, errors)
FROM delayedq_message
WHERE id = %s AND lease_token = %s AND generation = %s
"""
IS_HELD = """
SELECT id FROM delayedq_message WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
"""
DELETE = "DELETE FROM delayedq_message WHERE id = %s AND lease_token = %s AND generation = %s"

GIVE_BACK = """
UPDATE delayedq_message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = attempt - %(refund)s,
    scheduled_at = coalesce(%(scheduled_at)s, scheduled_at), errors = coalesce(%(errors)s, errors),
    metadata = coalesce(%(metadata)s, metadata)
WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
RETURNING id
"""

DISCARD = """
DELETE FROM delayedq_message WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
RETURNING id
"""

REARM = """
UPDATE delayedq_message SET lease_token = NULL, leased_until = NULL, leased_by = NULL
WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation <> %(generation)s
RETURNING id
"""

# A message's id comes from AUTOINCREMENT; an attempt whose message was replaced takes one that no message ever has.
RESERVE_IDS = "UPDATE sqlite_sequence SET seq = seq + %(count)s WHERE name = 'delayedq_message' RETURNING seq"

RECORD_SUPERSEDED = f"""
{HISTORY}
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 'superseded', %s, %s, %s, %s, %s, %s, NULL, %s)
"""

_RECORD_CANCELLED = f"""
{HISTORY}
SELECT id, %(now)s, NULL, scheduled_at, scheduled_at_initially, created_at, priority, attempt, max_attempts,
    'cancelled', queue, kind, key, leased_by, payload, metadata, NULL, {{errors}}
FROM delayedq_message
WHERE {{which}}
RETURNING id
"""
RECORD_UNSCHEDULED = _RECORD_CANCELLED.format(which="kind = %(kind)s AND key = %(key)s", errors="errors")
RECORD_WITHDRAWN = _RECORD_CANCELLED.format(
    which="id = %(id)s AND lease_token IS NULL AND attempt = 0", errors="%(errors)s"
)
RECORD_ALL = _RECORD_CANCELLED.format(which="queue = %(queue)s", errors="errors")
DELETE_BY_ID = "DELETE FROM delayedq_message WHERE id = %s"
DELETE_BY_KEY = "DELETE FROM delayedq_message WHERE kind = %s AND key = %s"

RENEW = """
UPDATE delayedq_message SET leased_until = max(leased_until, %(until)s)
WHERE id = %(id)s AND lease_token = %(lease_token)s
RETURNING id
"""

# A message that was replaced meanwhile has no attempt to give back.
RELEASE = """
UPDATE delayedq_message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = max(attempt - 1, 0)
WHERE id = %s AND lease_token = %s
"""

FINISHED = "SELECT id FROM delayedq_finishedmessage WHERE id = %(id)s"

# What an archive has set about to move is the archive's.
PRUNABLE = """
SELECT id FROM delayedq_finishedmessage
WHERE finished_at < %(before)s AND outcome <> 'failed'
    AND finished_at >= coalesce((SELECT cutoff FROM delayedq_archivebatch WHERE is_open = 1), '')
ORDER BY finished_at LIMIT %(limit)s
"""
PRUNE = "DELETE FROM delayedq_finishedmessage WHERE id = %s"
