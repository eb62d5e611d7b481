"""The statements of an operator's edits on SQLite: about one message each."""

from __future__ import annotations

from delayedq.core.channels import BOUNDARY
from delayedq.store.columns import REVIVED, given_priority, history, listed, moved_priority, revived_priority
from delayedq.store.sqlite.sql import HISTORY

# Still as seen, and no claim holds it.
_AS_SEEN = f"""
id = %(id)s AND generation = %(generation)s AND attempt = %(attempt)s AND scheduled_at = %(scheduled_at)s
    AND queue = %(queue)s AND {given_priority()} = %(priority)s
"""
_UNCHANGED = f"{_AS_SEEN} AND (lease_token IS NULL OR leased_until <= %(now)s)"

# Of what has a channel, the lease is read first, and then taken away: its place is held.
_UNLEASED = ", ".join(
    f"{name} = CASE WHEN priority < {BOUNDARY} THEN {name} END" for name in ("lease_token", "leased_until", "leased_by")
)
TAKE_LEASE = """
UPDATE delayedq_message SET lease_token = NULL, leased_until = NULL, leased_by = NULL WHERE id = %(id)s
RETURNING id
"""

MOVE = f"""
UPDATE delayedq_message
SET scheduled_at = %(new_time)s, queue = %(new_queue)s, priority = {moved_priority("%(new_priority)s")}, {_UNLEASED}
WHERE {_UNCHANGED}
RETURNING id, lease_token
"""

RECORD_CANCELLED = f"""
{HISTORY}
SELECT {history(finished_at="%(now)s")}
FROM delayedq_message
WHERE {_UNCHANGED}
RETURNING id, metadata
"""

REWRITE = f"""
UPDATE delayedq_message
SET payload = %(payload)s, {_UNLEASED}
WHERE {_UNCHANGED} AND payload = %(payload_before)s
RETURNING id, lease_token
"""

# Still as seen, and a claim holds it.
RECORD_STOPPED = f"""
{HISTORY}
SELECT {history(finished_at="%(now)s", started_at="claimed_at")}
FROM delayedq_message
WHERE {_AS_SEEN} AND leased_until > %(now)s
RETURNING id, metadata
"""

_REVIVED = listed(
    REVIVED,
    scheduled_at="coalesce(%(due)s, scheduled_at)",
    scheduled_at_initially="coalesce(%(due)s, scheduled_at_initially)",
    generation="0",
    priority=revived_priority(),
    attempt="CASE WHEN %(due)s IS NULL THEN attempts ELSE 0 END",
    errors="CASE WHEN %(due)s IS NULL THEN errors END",
)
REVIVE = f"""
INSERT INTO delayedq_message ({listed(REVIVED)})
SELECT {_REVIVED}
FROM delayedq_finishedmessage
WHERE id = %(id)s AND outcome = %(outcome)s
ON CONFLICT DO NOTHING
RETURNING id
"""
DELETE = "DELETE FROM delayedq_message WHERE id = %(id)s RETURNING id"
DELETE_ENDED = "DELETE FROM delayedq_finishedmessage WHERE id = %(id)s RETURNING id"

# A loose scan of the index of keys.
KEYED_KINDS = """
WITH RECURSIVE name (kind) AS (
    SELECT min(kind) FROM delayedq_message WHERE key IS NOT NULL
    UNION ALL
    SELECT (SELECT min(kind) FROM delayedq_message AS message WHERE key IS NOT NULL AND message.kind > name.kind)
    FROM name WHERE kind IS NOT NULL
)
SELECT kind FROM name WHERE kind IS NOT NULL
"""
