"""The statements about channels that all databases share."""

from __future__ import annotations

#: Is there something to do; and when is the first of those that rest looked at again?
COMING = """
SELECT EXISTS (SELECT 1 FROM delayedq_channelnotice), EXISTS (SELECT 1 FROM delayedq_channel WHERE is_ready = TRUE),
    (SELECT min(ready_at) FROM delayedq_channel WHERE is_ready = FALSE)
"""

# The first one has a type for each column. {ready}: more groups in which channels are in turn.
SURROUNDINGS = """
SELECT 'scope', id, scope, definition, tokens, tokens_at FROM delayedq_limitstate WHERE channel = ''
UNION ALL SELECT 'bucket', NULL, channel, NULL, tokens, tokens_at FROM delayedq_limitstate
    WHERE scope = '' AND tokens IS NOT NULL
UNION ALL SELECT 'queue', NULL, queue, NULL, NULL, NULL FROM delayedq_pausedqueue
UNION ALL SELECT 'kind', NULL, kind, NULL, NULL, NULL FROM delayedq_pausedtask
UNION ALL SELECT 'share', NULL, scope, channel, NULL, NULL FROM delayedq_limitstate WHERE share > 0
UNION ALL SELECT
    CASE WHEN one.id IN (
        {ready} SELECT group_id FROM delayedq_channel WHERE group_id = one.id AND is_ready = TRUE
    ) THEN 'ready' ELSE 'group' END,
    id, queue, kind, turn, NULL
FROM delayedq_channelgroup AS one
"""
