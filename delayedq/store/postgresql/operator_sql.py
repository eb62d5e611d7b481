"""The statements of an operator's edits on PostgreSQL."""

from __future__ import annotations

from delayedq.sql.columns import REVIVED, history, listed
from delayedq.sql.priority import given_priority, moved_priority, revived_priority
from delayedq.store.postgresql.sql import FREE, HISTORY, HOLD, NOW, unleased

_SEEN = """
%(ids)s::bigint[], %(generations)s::int[], %(attempts)s::smallint[], %(times)s::timestamptz[], %(queues)s::text[],
%(priorities)s::smallint[]
"""
_SEEN_COLUMNS = "id, generation, attempt, scheduled_at, queue, priority"

# Still as seen, and no claim holds it.
_AS_SEEN = f"""
message.id = {FREE} AND message.id = seen.id AND message.generation = seen.generation
    AND message.attempt = seen.attempt AND message.scheduled_at = seen.scheduled_at AND message.queue = seen.queue
    AND {given_priority("message.priority")} = seen.priority
"""
_UNCHANGED = f"{_AS_SEEN} AND {unleased('message')}"

# Those that wait again: what runs in a channel, as its lease ran out and can be renewed yet, leaves a held place. Its
# own place is written after that, as a statement can't lock a row that it has changed.
_CHANGED = f"""
WITH ended AS (
    SELECT message.id, message.priority, message.lease_token, message.leased_until, {{new}}
    FROM delayedq_message AS message, unnest({_SEEN}, {{given}}) AS seen ({_SEEN_COLUMNS}, {{columns}})
    WHERE {_UNCHANGED}{{also}}
    FOR UPDATE OF message
),
{HOLD},
waiting AS (
    UPDATE delayedq_channelmessage SET held_until = {NOW} WHERE message_id = ANY(ARRAY(SELECT id FROM held))
)
UPDATE delayedq_message AS message
SET {{changes}}, lease_token = NULL, leased_until = NULL, leased_by = NULL
FROM ended
WHERE message.id = ANY(ARRAY(SELECT id FROM ended)) AND message.id = ended.id
RETURNING message.id
"""

MOVE = _CHANGED.format(
    given="%(new_times)s::timestamptz[], %(new_queues)s::text[], %(new_priorities)s::smallint[]",
    columns="new_time, new_queue, new_priority",
    new="new_time, new_queue, new_priority",
    also="",
    changes=f"""scheduled_at = ended.new_time, queue = ended.new_queue,
    priority = {moved_priority("ended.new_priority", "message.priority")}""",
)
REWRITE = _CHANGED.format(
    given="%(payloads_before)s::text[], %(payloads)s::text[]",
    columns="payload_before, new_payload",
    new="new_payload",
    also=" AND message.payload = seen.payload_before",
    changes="payload = ended.new_payload",
)

CANCEL = f"""
WITH ended AS (
    DELETE FROM delayedq_message AS message
    USING unnest({_SEEN}) AS seen ({_SEEN_COLUMNS})
    WHERE {_UNCHANGED}
    RETURNING message.*
),
{HOLD}
{HISTORY}
SELECT {history(finished_at=NOW)} FROM ended
RETURNING id
"""

# Still as seen, and a claim holds it.
STOP = f"""
WITH ended AS (
    DELETE FROM delayedq_message AS message
    USING unnest({_SEEN}) AS seen ({_SEEN_COLUMNS})
    WHERE {_AS_SEEN} AND NOT {unleased("message")}
    RETURNING message.*
),
{HOLD}
{HISTORY}
SELECT {history(finished_at=NOW, started_at="claimed_at")} FROM ended
RETURNING id
"""

# Of two with the same key, that which ended last. Rows are inserted in the order of their keys, as offers are.
_REVIVED = listed(
    REVIVED,
    scheduled_at="coalesce(due, scheduled_at)",
    scheduled_at_initially="coalesce(due, scheduled_at_initially)",
    generation="0",
    priority=revived_priority(),
    attempt="CASE WHEN due IS NULL THEN attempts ELSE 0 END",
    errors="CASE WHEN due IS NULL THEN errors END",
)
REVIVE = f"""
WITH ended AS (
    SELECT finished.*, given.due
    FROM unnest(%(ids)s::bigint[], %(times)s::timestamptz[]) AS given (id, due)
    CROSS JOIN LATERAL (
        SELECT * FROM delayedq_finishedmessage
        WHERE id = given.id AND outcome = %(outcome)s
        FOR UPDATE SKIP LOCKED
    ) AS finished
),
revived AS (
    INSERT INTO delayedq_message ({listed(REVIVED)})
    SELECT {_REVIVED} FROM ended
    ORDER BY kind COLLATE "C", key COLLATE "C", finished_at DESC
    ON CONFLICT DO NOTHING
    RETURNING id
),
gone AS (
    DELETE FROM delayedq_finishedmessage WHERE id = ANY(ARRAY(SELECT id FROM revived))
)
SELECT id FROM revived
"""

# A loose scan of the index of keys.
KEYED_KINDS = """
WITH RECURSIVE name (kind) AS (
    SELECT min(kind) FROM delayedq_message WHERE key IS NOT NULL
    UNION ALL
    SELECT (SELECT min(kind) FROM delayedq_message AS message WHERE key IS NOT NULL AND message.kind > name.kind)
    FROM name WHERE kind IS NOT NULL
)
SELECT kind FROM name
WHERE EXISTS (
    SELECT 1 FROM delayedq_message WHERE kind = name.kind AND key >= %(first)s AND key <= %(last)s
)
"""

# A keyset scan along all lanes at once.
LANES = """
SELECT scanned.at, scanned.id, scanned.chosen, scanned.step, lane.place
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) WITH ORDINALITY AS lane (queue, priority, place)
CROSS JOIN LATERAL ({lane}) AS scanned
"""
