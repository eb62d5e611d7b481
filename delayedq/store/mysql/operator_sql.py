"""The statements of an operator's edits on MariaDB and MySQL. See `sql`."""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY
from delayedq.store.columns import REVIVED, given_priority, history, listed, moved_priority, revived_priority
from delayedq.store.mysql.sql import BY_ID, HISTORY, IDS, KEY, LOCKED_IDS, LONGTEXT, NOW, VARCHAR, unleased

# Those that no claim holds, locked; as they are seen now, and whether they have a lease in a channel.
_SEEN = f"""
SELECT message.id, generation, attempt, scheduled_at, queue, {given_priority()},
    message.lease_token IS NOT NULL AND message.priority < {BOUNDARY}
FROM {LOCKED_IDS} {BY_ID}
WHERE {{which}}
FOR UPDATE SKIP LOCKED
"""
WAITING = _SEEN.format(which=unleased("message"))
# Those that a claim holds.
HELD = _SEEN.format(which=f"NOT {unleased('message')}")

MOVE = f"""
UPDATE JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', scheduled_at DATETIME(6) PATH '$[1]', queue {VARCHAR} PATH '$[2]', priority INT PATH '$[3]'
)) AS given
{BY_ID}
SET message.scheduled_at = given.scheduled_at, message.queue = given.queue,
    message.priority = {moved_priority("given.priority", "message.priority")},
    lease_token = NULL, leased_until = NULL, leased_by = NULL
"""

# Of messages that are locked.
REWRITE = f"""
UPDATE JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', payload {LONGTEXT} PATH '$[1]'
)) AS given
{BY_ID}
SET message.payload = given.payload, lease_token = NULL, leased_until = NULL, leased_by = NULL
"""
PAYLOADS = f"SELECT message.id, message.payload FROM {IDS} {BY_ID}"

RECORD_STOPPED = f"""
{HISTORY}
SELECT {history(id="message.id", finished_at=NOW, started_at="claimed_at", key=KEY)}
FROM {IDS} {BY_ID}
"""

ENDED = f"""
SELECT finished.id
FROM {LOCKED_IDS}
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE outcome = %(outcome)s
FOR UPDATE SKIP LOCKED
"""

# Of two with the same key, that which ended last. Rows are inserted in the order of their keys, as offers are; what
# meets a live key changes nothing.
_REVIVED = {name: f"finished.{name}" for name in REVIVED} | {
    "scheduled_at": "coalesce(given.due, finished.scheduled_at)",
    "scheduled_at_initially": "coalesce(given.due, finished.scheduled_at_initially)",
    "generation": "0",
    "priority": revived_priority("finished."),
    "attempt": "IF(given.due IS NULL, finished.attempts, 0)",
    "key": f"finished.{KEY}",
    "errors": "IF(given.due IS NULL, finished.errors, NULL)",
}
REVIVE = f"""
INSERT INTO delayedq_message ({listed(REVIVED, key=KEY)})
SELECT {listed(REVIVED, **_REVIVED)}
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

# Its own loose scan, which it does not find in the statement of the others.
GROUPS = """
SELECT fingerprint, min(finished_at), max(finished_at)
FROM delayedq_finishedmessage FORCE INDEX (delayedq_fingerprint)
WHERE fingerprint >= -9223372036854775808
GROUP BY fingerprint LIMIT %(most)s
"""
