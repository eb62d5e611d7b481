"""How messages come into the queue on PostgreSQL."""

from __future__ import annotations

from delayedq.store.offers import CONFLICT, INSERT, RETURNING
from delayedq.store.postgresql.sql import NOW
from delayedq.store.protocol import OnConflict

OFFER_TEXTS = ("queue", "kind", "key", "payload", "metadata")
OFFER_COLUMNS = (*OFFER_TEXTS, "priority", "max_attempts", "scheduled_at")

_OFFER = f"""
{INSERT}
VALUES (%(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s,
    coalesce(%(scheduled_at)s::timestamptz, {NOW}), coalesce(%(scheduled_at)s::timestamptz, {NOW}), {NOW}, 0, 0)
{{conflict}}
{RETURNING}
"""

# What all messages of a batch have in common comes once, as `same_...`, and not as an array: 10,000 without keys take
# 34 ms instead of 54.
_QUEUE_AND_KIND = "coalesce(queue, %(same_queue)s::text) AS queue, coalesce(kind, %(same_kind)s::text) AS kind"
_VALUES = f"""
    coalesce(priority, %(same_priority)s::smallint), coalesce(max_attempts, %(same_max_attempts)s::smallint),
    payload, coalesce(metadata, %(same_metadata)s::text), coalesce(scheduled_at, {NOW}), coalesce(scheduled_at, {NOW}),
    {NOW}, 0, 0
"""
_ARRAYS = """%(queue)s::text[], %(kind)s::text[], %(priority)s::smallint[], %(max_attempts)s::smallint[],
    %(payload)s::text[], %(metadata)s::text[], %(scheduled_at)s::timestamptz[]"""
_GIVEN = "queue, kind, priority, max_attempts, payload, metadata, scheduled_at"

# Without a key nothing is in the way, and no order is needed.
STORE_UNKEYED = f"""
{INSERT}
SELECT {_QUEUE_AND_KIND}, NULL, {_VALUES}
FROM unnest({_ARRAYS}) AS given ({_GIVEN})
"""
OFFER_UNKEYED = f"{STORE_UNKEYED} RETURNING id"
OFFER_STEP = f"""
WITH offered AS ({OFFER_UNKEYED}), member AS (
    INSERT INTO delayedq_flowmember (message_id, step_id) SELECT id, %(step)s::bigint FROM offered
)
SELECT count(*) FROM offered
"""

# Ids are drawn in the order of the offers, and rows are inserted in the order of their keys, as `in_lock_order` has it:
# two batches that share keys lock them alike and can't deadlock.
_STORE_MANY = f"""
WITH offer AS MATERIALIZED (
    SELECT nextval((SELECT pg_get_serial_sequence('delayedq_message', 'id')::regclass)) AS id, {_QUEUE_AND_KIND}, key,
        priority, max_attempts, payload, metadata, scheduled_at
    FROM unnest({_ARRAYS}, %(key)s::text[]) AS given ({_GIVEN}, key)
)
{INSERT.replace("queue,", "id, queue,", 1)}
SELECT id, queue, kind, key, {_VALUES}
FROM offer
ORDER BY kind COLLATE "C", key COLLATE "C"
{{conflict}}
"""

# Of different times, for which ids need no order, and sorted by key already: 10,000 take 77 ms here instead of
# 90, and sorting them takes 1 ms there.
STORE_SORTED = f"""
{INSERT}
SELECT {_QUEUE_AND_KIND}, key, {_VALUES}
FROM unnest({_ARRAYS}, %(key)s::text[]) AS given ({_GIVEN}, key)
{CONFLICT[OnConflict.REPLACE]}
"""

OFFER = _OFFER.format(conflict="")
OFFER_KEYED = {policy: _OFFER.format(conflict=clause) for policy, clause in CONFLICT.items()}
STORE_MANY = _STORE_MANY.format(conflict=CONFLICT[OnConflict.REPLACE])
OFFER_MANY = {policy: _STORE_MANY.format(conflict=f"{clause} {RETURNING}") for policy, clause in CONFLICT.items()}
