"""The statements of the store on SQLite. Times are texts in UTC, as Django writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.sql import columns
from delayedq.sql.columns import REVIVED, history, listed, one_more
from delayedq.sql.dialects import BY_ROWS
from delayedq.sql.priority import BOUNDARY, given_priority, moved_priority, revived_priority
from delayedq.store import bare_sql, registry
from delayedq.store.offers import CONFLICT, INSERT, RETURNING
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.store.bare_queues import Matching

JOURNAL_MODE = "PRAGMA journal_mode"

FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"

DATA_VERSION = "PRAGMA data_version"

# Offers ---------------------------------------------------------------------------------------------------------------
_OFFER = f"""
{INSERT}
VALUES (
    %(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s,
    %(scheduled_at)s, %(scheduled_at)s, %(now)s, 0, 0
)
{{conflict}}
{RETURNING}
"""

OFFER = {policy: _OFFER.format(conflict=clause) for policy, clause in CONFLICT.items()}

# Whose lease ran out --------------------------------------------------------------------------------------------------

#: Tells whether a worker of this name is a process that runs on this host.
LIVES = "delayedq_lives"


def free(expired_by: str) -> str:
    """Nobody holds it: it has no lease, or one that ran out, and whose worker is not known to live.

    There is one write lock for all, and nothing says who gets it next: a lease keeper may wait for it until the leases
    of its workers have run out. The function is called only for leases that ran out. Consumers of bare queues have no
    keeper, and a lease that ran out long ago (`%(unrenewed)s`) was not forgotten for want of a lock.
    """
    return f"""(lease_token IS NULL OR leased_until <= {expired_by} AND (
        leased_until <= %(unrenewed)s OR instr(queue, '{BARE}') > 0 OR NOT {LIVES}(leased_by)
    ))"""


# Reading --------------------------------------------------------------------------------------------------------------

# A loose scan of the due index: one probe per queue, and one per priority in it.
_ALL_LANES = """
WITH RECURSIVE name (queue) AS (
    SELECT min(queue) FROM delayedq_message
    UNION ALL
    SELECT (SELECT min(queue) FROM delayedq_message AS message WHERE message.queue > name.queue)
    FROM name WHERE queue IS NOT NULL
),
lane (queue, priority) AS (
    SELECT queue, (SELECT min(priority) FROM delayedq_message AS message WHERE message.queue = name.queue)
    FROM name WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(priority) FROM delayedq_message AS message
        WHERE message.queue = lane.queue AND message.priority > lane.priority
    )
    FROM lane WHERE priority IS NOT NULL
)
"""

LANES = f"{_ALL_LANES} SELECT queue, priority FROM lane WHERE priority IS NOT NULL ORDER BY queue, priority"

_NOT_PAUSED = "queue NOT IN (SELECT queue FROM delayedq_pausedqueue)"

#: Its task is not paused.
_RUNS = "kind NOT IN (SELECT kind FROM delayedq_pausedtask)"

# Then one probe per lane for its first free row.
SCAN = f"""
{_ALL_LANES}
SELECT queue, priority, first_at FROM (
    SELECT queue, priority, (
        SELECT scheduled_at FROM delayedq_message AS message
        WHERE message.queue = lane.queue AND message.priority = lane.priority
            AND {free("%(now)s")} AND {_RUNS}
        ORDER BY scheduled_at LIMIT 1
    ) AS first_at
    FROM lane WHERE priority IS NOT NULL AND {_NOT_PAUSED}
)
WHERE first_at IS NOT NULL
"""

PEEK = f"""
SELECT scheduled_at FROM delayedq_message
WHERE queue = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s
    AND {free("%(now)s")} AND {_NOT_PAUSED} AND {_RUNS}
ORDER BY scheduled_at LIMIT 1
"""

# Claiming -------------------------------------------------------------------------------------------------------------

# One range of the due index. Leases count as expired that had run out when the claim began to wait for the write lock:
# who could not renew one because somebody held that lock may do so first.
_DUE = f"""
SELECT id FROM delayedq_message
WHERE queue = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= %(now)s
    AND {free("%(expired_by)s")} AND {_NOT_PAUSED} AND {_RUNS}
ORDER BY scheduled_at, id
"""

IS_DUE = f"{_DUE} LIMIT 1"

#: As texts, which are read faster here than by Django, one by one.
_TIMES = {name: f"{name} || ''" for name in columns.CLAIMED_TIMES}

LEASE = f"""
UPDATE delayedq_message
SET lease_token = %(token)s, leased_until = %(until)s, claimed_at = %(now)s, leased_by = %(worker)s,
    attempt = {one_more(least="min")}
WHERE {{which}}
RETURNING {listed(columns.CLAIMED, **_TIMES)}
"""

CLAIM = LEASE.format(which=f"id IN ({_DUE} LIMIT %(limit)s)")

CLAIM_UNCHANGED = LEASE.format(
    which="id = %(id)s AND generation = %(generation)s AND (lease_token IS NULL OR leased_until <= %(expired_by)s)"
)

# Settling -------------------------------------------------------------------------------------------------------------
HISTORY = f"INSERT INTO delayedq_finishedmessage ({listed(columns.HISTORY)})"

# Its parameters: when it ended and when it started, the attempts not to count, the outcome, its result, its errors, and
# what tells a dead letter from others.
_RECORD = history(
    finished_at="%s",
    started_at="%s",
    attempts="attempt - %s",
    outcome="%s",
    result="%s",
    errors="coalesce(%s, errors)",
    error="%s",
    fingerprint="%s",
)

RECORD = f"""
{HISTORY}
SELECT {_RECORD}
FROM delayedq_message
WHERE id = %s AND lease_token = %s AND generation = %s
"""

IS_HELD = """
SELECT id FROM delayedq_message WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
"""

DELETE = "DELETE FROM delayedq_message WHERE id = %s AND lease_token = %s AND generation = %s"

GIVE_BACK = """
UPDATE delayedq_message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = attempt - %(refund)s,
    scheduled_at = coalesce(%(scheduled_at)s, scheduled_at), errors = coalesce(%(errors)s, errors),
    metadata = coalesce(%(metadata)s, metadata)
WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
RETURNING id
"""

DISCARD = """
DELETE FROM delayedq_message WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation = %(generation)s
RETURNING id
"""

REARM = """
UPDATE delayedq_message SET lease_token = NULL, leased_until = NULL, leased_by = NULL
WHERE id = %(id)s AND lease_token = %(lease_token)s AND generation <> %(generation)s
RETURNING id
"""

# A message's id comes from AUTOINCREMENT; an attempt whose message was replaced takes one that no message ever has.
RESERVE_IDS = "UPDATE sqlite_sequence SET seq = seq + %(count)s WHERE name = 'delayedq_message' RETURNING seq"

_GIVEN = dict.fromkeys(columns.HISTORY, "%s") | {"outcome": "'superseded'", **columns.NO_RESULT}

RECORD_SUPERSEDED = f"{HISTORY} VALUES ({listed(columns.HISTORY, **_GIVEN)})"

# Taking back ----------------------------------------------------------------------------------------------------------
_RECORD_CANCELLED = f"""
{HISTORY}
SELECT {history(finished_at="%(now)s", errors="{errors}")}
FROM delayedq_message
WHERE {{which}}
RETURNING id, metadata
"""

RECORD_UNSCHEDULED = _RECORD_CANCELLED.format(which="kind = %(kind)s AND key = %(key)s", errors="errors")

RECORD_WITHDRAWN = _RECORD_CANCELLED.format(
    which="id = %(id)s AND lease_token IS NULL AND attempt = 0", errors="%(errors)s"
)

RECORD_ALL = _RECORD_CANCELLED.format(which="queue = %(queue)s", errors="errors")

DELETE_BY_ID = "DELETE FROM delayedq_message WHERE id = %s"

DELETE_BY_KEY = "DELETE FROM delayedq_message WHERE kind = %s AND key = %s"

# Holding --------------------------------------------------------------------------------------------------------------

# Changes nothing. Transactions that do not begin as writers wait here, and not after they have read the clock; and it
# proves that renewals go through, if there is none to make.
WRITE_LOCK = "UPDATE delayedq_message SET leased_until = NULL WHERE id = 0"

RENEW = """
UPDATE delayedq_message SET leased_until = max(leased_until, %(until)s)
WHERE id = %(id)s AND lease_token = %(lease_token)s
RETURNING id
"""

# A message that was replaced meanwhile has no attempt to give back.
RELEASE = """
UPDATE delayedq_message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = max(attempt - 1, 0)
WHERE id = %(id)s AND lease_token = %(lease_token)s
RETURNING id
"""

# History --------------------------------------------------------------------------------------------------------------
FINISHED = "SELECT id FROM delayedq_finishedmessage WHERE id = %(id)s"

#: What others need stays (`retention`).
UNNEEDED = " AND finished_at >= coalesce(({needed}), '')"

PRUNABLE = """
SELECT id FROM delayedq_finishedmessage
WHERE finished_at < %(before)s AND outcome <> 'failed'{unneeded}
ORDER BY finished_at LIMIT %(limit)s
"""

PRUNE = f"DELETE FROM delayedq_finishedmessage WHERE id IN ({PRUNABLE}) RETURNING id"

# Workers ------------------------------------------------------------------------------------------------------------
_TEXT = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {})"

HEARTBEAT = f"""
{registry.INSERT}
SELECT {", ".join(f"json_extract(given.value, '$.{name}')" for name in registry.GIVEN)},
    {_TEXT.format("clock.moment, '-' || json_extract(given.value, '$.age') || ' seconds'")},
    {_TEXT.format("clock.moment")}
FROM json_each(%(workers)s) AS given, (SELECT coalesce(%(now)s, 'now') AS moment) AS clock
WHERE true
{registry.ON_CONFLICT}
"""


# The statements of an operator's edits on SQLite: about one message each.


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

DELETE_LIVE = "DELETE FROM delayedq_message WHERE id = %(id)s RETURNING id"

DELETE_ENDED = "DELETE FROM delayedq_finishedmessage WHERE id = %(id)s RETURNING id"

# A loose scan of the index of keys.
KEYED_KINDS = """
WITH RECURSIVE name (kind) AS (
    SELECT min(kind) FROM delayedq_message WHERE key IS NOT NULL
    UNION ALL
    SELECT (SELECT min(kind) FROM delayedq_message AS message WHERE key IS NOT NULL AND message.kind > name.kind)
    FROM name WHERE kind IS NOT NULL
)
SELECT kind FROM name
WHERE EXISTS (
    SELECT 1 FROM delayedq_message WHERE kind = name.kind AND key >= %(first)s AND key <= %(last)s
)
"""


# The statements of bare queues on SQLite: what is claimed by conditions, and pages. See `sql`.
#
# `delayedq_meets` is `core.conditions.meets`: SQLite itself reads ints beyond 64 bits as floats, and some floats as
# their neighbours.


MEETS = "delayedq_meets"

PAGE = bare_sql.page(BY_ROWS, "(lease_token IS NULL OR leased_until <= %(now)s)")

_WITHIN = "key >= %(first)s AND key <= %(last)s"

_BY_KEY = "INDEXED BY delayedq_key"

KEYS = bare_sql.keys(_WITHIN, index=_BY_KEY)

_DUE_MATCHING = """
SELECT id FROM delayedq_message {index}
WHERE {place} = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= %(now)s
    AND (lease_token IS NULL OR leased_until <= %(expired_by)s) {asked}
ORDER BY scheduled_at, id LIMIT %(limit)s
"""


def due_matching(matching: Matching) -> str:
    asked = [] if matching.keys is None else [_WITHIN]
    if matching.conditions:
        asked.append(f"{MEETS}(payload, %(conditions)s)")
    place, index = ("kind", _BY_KEY) if matching.by_key else ("queue", "INDEXED BY delayedq_due")
    return _DUE_MATCHING.format(place=place, index=index, asked=" ".join(f"AND {one}" for one in asked))


def claim_matching(matching: Matching) -> str:
    return LEASE.format(which=f"id IN ({due_matching(matching)})")
