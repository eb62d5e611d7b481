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
    SELECT channel_id, message_id FROM delayedq_channelmessage FORCE INDEX (delayedq_channel_order)
    WHERE channel_id = %s AND lease_token = 0 AND due_at <= %s
    ORDER BY urgency, due_at, message_id LIMIT %s
)"""


def heads(channels: int) -> str:
    """The first messages of each channel, which takes its id, the moment, and how many."""
    return " UNION ALL ".join([_HEAD] * channels)
