"""Renewing and releasing leases on PostgreSQL, also those of locked rows (see `delayedq.store.renewals`)."""

from __future__ import annotations

from delayedq.store.postgresql.sql import FREE, HELD, NOW, PRESENT

# What was not renewed: the seconds that are left of leases whose rows are locked, NULL for those that are lost.
RENEW = f"""
WITH renewed AS (
    UPDATE delayedq_message AS message
    SET leased_until = greatest(message.leased_until, {NOW} + %(lease)s)
    FROM {HELD}
    WHERE message.id = {FREE} AND message.id = held.id AND message.lease_token = held.token
    RETURNING message.id, message.lease_token
)
SELECT id, token, (
    SELECT extract(epoch FROM greatest(message.leased_until, renewal.leased_until) - {NOW})::float8
    FROM delayedq_message AS message LEFT JOIN delayedq_lockedrenewal AS renewal
        ON renewal.message_id = message.id AND renewal.lease_token = message.lease_token
    WHERE message.id = held.id AND message.lease_token = held.token
)
FROM {HELD} WHERE (id, token) NOT IN (SELECT id, lease_token FROM renewed)
"""

# Rows come in the order of their ids: two keepers can't deadlock. Who lost the message meanwhile writes nothing: that
# would overwrite the renewal of its next holder.
KEEP_LOCKED = f"""
INSERT INTO delayedq_lockedrenewal AS renewal (message_id, lease_token, leased_until)
SELECT id, token, {NOW} + %(lease)s FROM {HELD} WHERE {PRESENT} = held.token
ON CONFLICT (message_id) DO UPDATE SET lease_token = excluded.lease_token, leased_until = CASE
    WHEN renewal.lease_token = excluded.lease_token THEN greatest(renewal.leased_until, excluded.leased_until)
    ELSE excluded.leased_until
END
"""
FORGET_LOCKED = f"""
DELETE FROM delayedq_lockedrenewal AS renewal USING {HELD}
WHERE renewal.message_id = held.id AND renewal.lease_token = held.token
"""
FORGET_EXPIRED = f"DELETE FROM delayedq_lockedrenewal WHERE leased_until <= {NOW}"

# What was not released, and whether its row, which is locked then, still carries the token. A message that was replaced
# meanwhile has no attempt to give back.
RELEASE = f"""
WITH released AS (
    UPDATE delayedq_message AS message
    SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = greatest(message.attempt - 1, 0)
    FROM {HELD}
    WHERE message.id = {FREE} AND message.id = held.id AND message.lease_token = held.token
    RETURNING message.id, held.token
),
-- The places of those that were replaced into another channel meanwhile, which were held where they were claimed.
let_go AS (
    DELETE FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(
        SELECT message_id FROM delayedq_channelmessage
        WHERE message_id = ANY(ARRAY(SELECT ~(id # token) FROM released)) FOR UPDATE SKIP LOCKED
    ))
    RETURNING channel_id
),
-- The channels of those that have one are to be looked at: there is room.
freed AS (
    SELECT channel_id FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(SELECT id FROM released))
    UNION SELECT channel_id FROM let_go
),
-- LIMIT keeps the planner from joining them otherwise than by their keys.
told AS (
    INSERT INTO delayedq_channelnotice (channel_id, group_id, queue, kind, name, at, ended, seconds)
    SELECT channel.id, channel.group_id, its.queue, its.kind, channel.name, {NOW}, 0, 0
    FROM freed
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channel WHERE id = freed.channel_id LIMIT 1) AS channel
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channelgroup WHERE id = channel.group_id LIMIT 1) AS its
)
SELECT id, token, coalesce({PRESENT} = held.token, false)
FROM {HELD} WHERE (id, token) NOT IN (SELECT id, token FROM released)
"""
