"""The statements about messages with a channel on MariaDB and MySQL."""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY
from delayedq.store.mysql.sql import CLAIMABLE_WHERE, IDS, NOW

# The row that stands for the lock of claims from channels.
LOCK = "SELECT id FROM delayedq_limitstate WHERE scope = '' AND channel = '' FOR UPDATE SKIP LOCKED"
HAS_LOCK = "SELECT id FROM delayedq_limitstate WHERE scope = '' AND channel = ''"
MAKE_LOCK = "INSERT IGNORE INTO delayedq_limitstate (scope, channel) VALUES ('', '')"

CLAIM_IDS = CLAIMABLE_WHERE.format(
    index="PRIMARY",
    which=f"id IN %(ids)s AND priority < {BOUNDARY} AND scheduled_at <= {NOW}",
    order="",
)

FORGET_NOTICES = f"""
DELETE notice FROM {IDS} STRAIGHT_JOIN delayedq_channelnotice AS notice FORCE INDEX (PRIMARY) ON notice.id = given.id
"""
_PLACES = f"""{IDS}
STRAIGHT_JOIN delayedq_channelmessage AS place FORCE INDEX (PRIMARY) ON place.message_id = given.id
"""
TAKE_PLACES = f"UPDATE {_PLACES} SET place.lease_token = %(token)s"
DROP_PLACES = f"DELETE place FROM {_PLACES}"

_HEAD = """(
    SELECT channel_id, urgency, due_at, message_id FROM delayedq_channelmessage FORCE INDEX ({index})
    WHERE channel_id = %s AND lease_token = 0 AND due_at <= %s
    ORDER BY {order} LIMIT %s
)"""


def heads(channels: int) -> str:
    """The first messages of each channel, which takes its id, the moment, and how many."""
    return _union(channels, index="delayedq_channel_order", order="urgency, due_at, message_id")


def due(channels: int) -> str:
    """The same of those that became due first.

    In the order of claims, the index has what is not due between them, which may be much.
    """
    return _union(channels, index="delayedq_channel_due", order="due_at")


def _union(channels: int, **words: str) -> str:
    return " UNION ALL ".join([_HEAD.format(**words)] * channels)
