"""The statements about messages with a channel on PostgreSQL."""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY
from delayedq.store.postgresql.sql import CLAIMED, FREE, LEASE, NOW, unleased

# A number of its own among the advisory locks of the database.
LOCK = "SELECT pg_try_advisory_xact_lock(4990113571238845)"

CLAIM_IDS = f"""
{LEASE}
WHERE message.id = {FREE} AND message.priority < {BOUNDARY} AND message.scheduled_at <= {NOW} AND {unleased("message")}
RETURNING {CLAIMED}
"""

HEADS = """
SELECT channel.id, head.message_id
FROM unnest(%(channels)s::bigint[], %(most)s::int[]) AS channel (id, most)
CROSS JOIN LATERAL (
    SELECT message_id FROM delayedq_channelmessage
    WHERE channel_id = channel.id AND lease_token = 0 AND due_at <= %(moment)s
    ORDER BY urgency, due_at, message_id
    LIMIT channel.most
) AS head
"""
