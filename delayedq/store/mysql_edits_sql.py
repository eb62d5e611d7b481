"""The statements of an operator's edits on MariaDB and MySQL. See `mysql_sql`."""

from __future__ import annotations

from delayedq.store.mysql_sql import BY_ID, IDS, NOW, VARCHAR

# Those that nobody holds, locked; as they are seen now.
WAITING = f"""
SELECT message.id, generation, attempt, scheduled_at, queue, priority FROM {IDS} {BY_ID}
WHERE lease_token IS NULL OR leased_until <= {NOW}
FOR UPDATE SKIP LOCKED
"""

MOVE = f"""
UPDATE JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', scheduled_at DATETIME(6) PATH '$[1]', queue {VARCHAR} PATH '$[2]', priority INT PATH '$[3]'
)) AS given
{BY_ID}
SET message.scheduled_at = given.scheduled_at, message.queue = given.queue, message.priority = given.priority,
    lease_token = NULL, leased_until = NULL, leased_by = NULL
"""

ENDED = f"""
SELECT finished.id
FROM {IDS} STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE outcome = %(outcome)s
FOR UPDATE SKIP LOCKED
"""

# Of two with the same key, that which ended last. Rows are inserted in the order of their keys, as offers are; what
# meets a live key changes nothing.
REVIVE = """
INSERT INTO delayedq_message (
    id, scheduled_at, scheduled_at_initially, created_at, generation, priority, attempt, max_attempts,
    queue, kind, `key`, payload, metadata, errors
)
SELECT finished.id, coalesce(given.due, finished.scheduled_at), coalesce(given.due, finished.scheduled_at_initially),
    finished.created_at, 0, finished.priority, IF(given.due IS NULL, finished.attempts, 0), finished.max_attempts,
    finished.queue, finished.kind, finished.`key`, finished.payload, finished.metadata,
    IF(given.due IS NULL, finished.errors, NULL)
FROM JSON_TABLE(%(given)s, '$[*]' COLUMNS (id BIGINT PATH '$[0]', due DATETIME(6) PATH '$[1]')) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
ORDER BY finished.kind, finished.`key`, finished.finished_at DESC
ON DUPLICATE KEY UPDATE generation = delayedq_message.generation
"""
LIVE = f"SELECT message.id FROM {IDS} {BY_ID}"

NEXT_KIND = """
SELECT kind FROM delayedq_message FORCE INDEX (delayedq_key)
WHERE kind > %(kind)s AND `key` IS NOT NULL
ORDER BY kind LIMIT 1
"""
