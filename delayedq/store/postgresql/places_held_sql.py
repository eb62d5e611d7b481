"""Places that are held for attempts, in the statements on PostgreSQL that end their messages.

See `channels.places_held`.
"""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY

#: The message of a place that a claim has taken.
MESSAGE = """CASE WHEN place.message_id < 0 THEN (~place.message_id) # place.lease_token ELSE place.message_id END"""

# Of the messages in `ended`, those that run in a channel, or ran out and can be renewed yet: their places are held as
# long as their leases. The place is found by the id alone, and locked, so that it is the newest: a transaction that has
# committed meanwhile may have moved it, and a claim may have taken it, which this statement does not see otherwise.
HOLD = f"""
held AS (
    INSERT INTO delayedq_channelmessage AS known
        (message_id, channel_id, group_id, urgency, due_at, lease_token, held_until)
    SELECT ~(ended.id # ended.lease_token), place.channel_id, place.group_id, place.urgency, place.due_at,
        ended.lease_token, greatest(ended.leased_until, (
            SELECT leased_until FROM delayedq_lockedrenewal AS renewal
            WHERE renewal.message_id = ended.id AND renewal.lease_token = ended.lease_token
        ))
    FROM ended
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channelmessage WHERE message_id = ended.id LIMIT 1 FOR UPDATE) AS place
    WHERE ended.priority < {BOUNDARY} AND ended.lease_token IS NOT NULL
    ON CONFLICT (message_id) DO UPDATE SET held_until = greatest(known.held_until, excluded.held_until)
    RETURNING (~message_id) # lease_token AS id
)
"""
