"""The statements on PostgreSQL that end the messages of a key or of a queue."""

from __future__ import annotations

from delayedq.store.columns import history
from delayedq.store.postgresql.places_held_sql import HOLD
from delayedq.store.postgresql.sql import HISTORY, NOW

# How many messages it ended, and the keys of those that it saw and did not end. Transactions that it waited for have
# ended these, and what they offered again under the same key, it does not see: it is to be looked for.
_MISSED = """
SELECT (SELECT count(*) FROM ended), ARRAY(
    SELECT key FROM delayedq_message WHERE {which} AND key IS NOT NULL EXCEPT SELECT key FROM ended
)
"""
_DROP = f"""
WITH ended AS (
    DELETE FROM delayedq_message WHERE {{which}} RETURNING *
),
recorded AS (
    {HISTORY}
    SELECT {history(finished_at=NOW, errors="errors")} FROM ended
),
{HOLD}
{_MISSED}
"""
_ERASE = f"""
WITH ended AS (
    DELETE FROM delayedq_message WHERE {{which}} RETURNING *
),
{HOLD}
{_MISSED}
"""
# One key at a time: for an array of them, PostgreSQL 15 without statistics reads all keys of the kind.
_OF_KEY, _OF_QUEUE = "kind = %(kind)s AND key = %(key)s", "queue = %(queue)s"
DROP_KEY, DROP_ALL = _DROP.format(which=_OF_KEY), _DROP.format(which=_OF_QUEUE)
ERASE_KEY, ERASE_ALL = _ERASE.format(which=f"queue = %(kind)s AND {_OF_KEY}"), _ERASE.format(which=_OF_QUEUE)
