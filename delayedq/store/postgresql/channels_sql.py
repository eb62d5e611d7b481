"""The statements about messages with a channel on PostgreSQL.

Each way to the database takes the interpreter lock from a busy worker and gives it back: a claim reads all of its
channels in one statement, and writes in one. With 1,000 channels and batches of 512, a statement for each table and
each step took half of the time.
"""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY, LIMITED
from delayedq.store.channels.notices import KEPT, MOST_NOTICES, MOST_RISING
from delayedq.store.channels.visits import FIRST_SECONDS, LEAST_SECONDS
from delayedq.store.postgresql.sql import CLAIMED, FREE, LEASE, NOW, expired, unleased

# A number of its own among the advisory locks of the database. The moment is that at which the lock is there.
LOCK = f"SELECT CASE WHEN pg_try_advisory_xact_lock(4990113571238845) THEN {NOW} END"

# What offers and settlements write ----------------------------------------------------------------------------------

_TOLD = "INSERT INTO delayedq_channelnotice (channel_id, group_id, queue, kind, name, at, ended, seconds)"

TELL = f"""
WITH dropped AS (
    DELETE FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(SELECT unnest(%(ended_ids)s::bigint[])))
),
told AS (
    {_TOLD}
    SELECT * FROM unnest(
        %(channels)s::bigint[], %(groups)s::bigint[], %(queues)s::text[], %(kinds)s::text[], %(names)s::text[],
        %(moments)s::timestamptz[], %(ended)s::int[], %(seconds)s::float8[]
    )
)
SELECT 1
"""

LINE_UP = f"""
WITH channel (id, group_id, queue, kind, name) AS MATERIALIZED (
    SELECT * FROM unnest(
        %(channels)s::bigint[], %(groups)s::bigint[], %(queues)s::text[], %(kinds)s::text[], %(names)s::text[]
    )
),
placed AS (
    INSERT INTO delayedq_channelmessage (message_id, channel_id, group_id, urgency, due_at, lease_token)
    SELECT message.id, channel.id, channel.group_id, -message.priority - {LIMITED}, message.scheduled_at, 0
    FROM unnest(%(ids)s::bigint[], %(homes)s::bigint[]) AS lined (message_id, channel_id)
    JOIN channel ON channel.id = lined.channel_id
    JOIN delayedq_message AS message ON message.id = lined.message_id
    WHERE message.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND message.priority < {BOUNDARY}
    ON CONFLICT (message_id) DO UPDATE SET
        channel_id = excluded.channel_id, group_id = excluded.group_id, urgency = excluded.urgency,
        due_at = excluded.due_at
    RETURNING channel_id, due_at
),
told AS (
    {_TOLD}
    SELECT channel.id, channel.group_id, channel.queue, channel.kind, channel.name, min(placed.due_at), 0, 0
    FROM placed JOIN channel ON channel.id = placed.channel_id
    GROUP BY 1, 2, 3, 4, 5
)
SELECT 1
"""

# What a claim writes first ------------------------------------------------------------------------------------------

_COST = f"greatest(CASE WHEN known.seconds > 0 THEN known.seconds ELSE {FIRST_SECONDS} END, {LEAST_SECONDS})"
_KEPT = f"CASE WHEN known.seconds > 0 THEN power({KEPT}::float8, least(heard.ended, 1000)) ELSE 0 END"

# `notices.hear` in one statement: it says what the expressions mean.
HEAR = f"""
WITH taken AS (
    DELETE FROM delayedq_channelnotice
    WHERE id = ANY(ARRAY(SELECT id FROM delayedq_channelnotice ORDER BY id LIMIT {MOST_NOTICES}))
    RETURNING channel_id, group_id, queue, kind, name, at, ended, seconds
),
heard AS MATERIALIZED (
    SELECT channel_id, min(group_id) AS group_id, min(name) AS name, min(at) AS at, sum(ended)::float8 AS ended,
        sum(seconds) AS seconds
    FROM taken GROUP BY channel_id
),
grouped AS (
    INSERT INTO delayedq_channelgroup (id, queue, kind, turn)
    SELECT DISTINCT group_id, queue, kind, 0::float8 FROM taken
    WHERE NOT EXISTS (SELECT 1 FROM delayedq_channelgroup AS one WHERE one.id = taken.group_id)
    ON CONFLICT (id) DO NOTHING
),
stored AS (
    INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds)
    SELECT
        heard.channel_id, heard.group_id, heard.name,
        coalesce(known.is_ready, false) OR least(heard.at, known.ready_at) <= {NOW},
        least(heard.at, known.ready_at),
        CASE WHEN known.is_ready THEN known.turn ELSE greatest(known.turn, its.turn, 0) END
            + CASE WHEN known.id IS NOT NULL THEN heard.seconds - heard.ended * {_COST} ELSE 0 END,
        CASE WHEN heard.ended > 0
            THEN coalesce(known.seconds, 0) * {_KEPT} + heard.seconds / heard.ended * (1 - {_KEPT})
            ELSE coalesce(known.seconds, 0) END
    FROM heard
    LEFT JOIN delayedq_channel AS known ON known.id = heard.channel_id
    LEFT JOIN delayedq_channelgroup AS its ON its.id = heard.group_id
    ON CONFLICT (id) DO UPDATE SET
        is_ready = excluded.is_ready, ready_at = excluded.ready_at, turn = excluded.turn, seconds = excluded.seconds
),
rested AS (
    UPDATE delayedq_channel SET is_ready = true
    WHERE id = ANY(ARRAY(
        SELECT id FROM delayedq_channel WHERE is_ready = false AND ready_at <= {NOW}
        ORDER BY ready_at LIMIT {MOST_RISING}
    )) AND id NOT IN (SELECT channel_id FROM heard)
)
SELECT 1
"""

# What it reads ------------------------------------------------------------------------------------------------------

_WAITING = "FROM delayedq_channelmessage WHERE channel_id = channel.id AND lease_token = 0"
_FIRST = f"SELECT message_id {_WAITING} AND due_at <= {NOW} ORDER BY urgency, due_at, message_id"

HEADS = f"""
SELECT channel.id, ARRAY({_FIRST} LIMIT channel.most)
FROM unnest(%(channels)s::bigint[], %(most)s::int[]) AS channel (id, most)
"""

# What a lease says may be over, and renewed beside its row (see `expired`): then it ends at any moment.
LOOK = f"""
SELECT channel.id, channel.name, channel.is_ready, channel.ready_at, channel.turn, channel.seconds, channel.tokens,
    channel.tokens_at, running.number, running.until, channel.share, ARRAY({_FIRST} LIMIT channel.share),
    (SELECT min(due_at) {_WAITING} AND due_at > {NOW}), running.ended,
    CASE WHEN channel.name <> '' THEN coalesce(
        (SELECT definition FROM delayedq_limitstate WHERE scope = %(kind)s AND channel = channel.name),
        (SELECT definition FROM delayedq_limitstate WHERE scope = %(queue)s AND channel = channel.name)
    ) END
FROM (
    SELECT one.*, ((%(room)s + count(*) OVER () - 1) / count(*) OVER ())::int + 1 AS share FROM (
        SELECT * FROM delayedq_channel WHERE group_id = %(group)s AND is_ready = true ORDER BY turn, id LIMIT %(most)s
    ) AS one
) AS channel
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE is_held), min(greatest(leased_until, {NOW})) FILTER (WHERE is_held),
        coalesce(array_agg(message_id) FILTER (WHERE NOT is_held), '{{}}')
    FROM (
        SELECT place.message_id, message.leased_until, message.id IS NOT NULL AND NOT ({expired("message")}) AS is_held
        FROM delayedq_channelmessage AS place
        LEFT JOIN delayedq_message AS message
            ON message.id = place.message_id AND message.lease_token = place.lease_token
        WHERE place.channel_id = channel.id AND place.lease_token > 0
    ) AS place
) AS running (number, until, ended)
ORDER BY channel.turn, channel.id
"""

# What it writes -----------------------------------------------------------------------------------------------------

CLAIM_IDS = f"""
{LEASE}
WHERE message.id = {FREE} AND message.priority < {BOUNDARY} AND message.scheduled_at <= {NOW} AND {unleased("message")}
RETURNING {CLAIMED}
"""

# A channel that was deleted is inserted again where less was claimed than it was deleted for.
_KEPT_CHANNELS = """
kept AS (
    INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds, tokens, tokens_at)
    SELECT id, %(group)s, name, is_ready, ready_at, turn, seconds, tokens, tokens_at
    FROM unnest(
        %(channels)s::bigint[], %(names)s::text[], %(ready)s::boolean[], %(ready_at)s::timestamptz[],
        %(turns)s::float8[], %(seconds)s::float8[], %(tokens)s::float8[], %(tokens_at)s::timestamptz[]
    ) AS given (id, name, is_ready, ready_at, turn, seconds, tokens, tokens_at)
    ON CONFLICT (id) DO UPDATE SET
        is_ready = excluded.is_ready, ready_at = excluded.ready_at, turn = excluded.turn, tokens = excluded.tokens,
        tokens_at = excluded.tokens_at
),
gone AS (
    DELETE FROM delayedq_channel WHERE id = ANY(ARRAY(SELECT unnest(%(gone)s::bigint[])))
),
turned AS (
    UPDATE delayedq_channelgroup SET turn = %(turn)s WHERE id = %(group)s AND turn <> %(turn)s
)
"""
KEEP = f"WITH {_KEPT_CHANNELS} SELECT 1"

START = f"""
WITH claimed AS ({CLAIM_IDS}),
taken AS (
    UPDATE delayedq_channelmessage AS place SET lease_token = %(token)s
    FROM claimed WHERE place.message_id = claimed.id AND place.message_id = ANY(ARRAY(SELECT id FROM claimed))
),
{_KEPT_CHANNELS}
SELECT * FROM claimed
"""
