"""The statements about messages with a channel on SQLite."""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY
from delayedq.store.sqlite.sql import LEASE, free

CLAIM_IDS = LEASE.format(
    which=f"""id IN (SELECT value FROM json_each(%(ids)s)) AND priority < {BOUNDARY} AND scheduled_at <= %(now)s
    AND {free("%(expired_by)s")}"""
)

# The first that became due. In the order of claims, the index has what is not due between them, which may be much.
DUE = """
SELECT urgency, due_at, message_id FROM delayedq_channelmessage INDEXED BY delayedq_channel_due
WHERE channel_id = %(channel)s AND lease_token = 0 AND due_at <= %(moment)s
ORDER BY due_at
LIMIT %(most)s
"""
HEADS = """
SELECT message_id FROM delayedq_channelmessage INDEXED BY delayedq_channel_order
WHERE channel_id = %(channel)s AND lease_token = 0 AND due_at <= %(moment)s
ORDER BY urgency, due_at, message_id
LIMIT %(most)s
"""
