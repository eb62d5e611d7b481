"""The statements of the store on PostgreSQL.

All of them take `now`: NULL means the server's clock, and the planner folds the coalesce away. What a claim writes
(lease_token, leased_until, claimed_at, leased_by, attempt) is in no index, so a claim is a heap-only update. Where rows
are joined with arrays of ids and tokens, they are first found by the array of a subquery, which the planner takes for
short: that leaves it no way but the primary key (it read 50,000 rows without statistics from end to end: 8 ms instead
of 1 ms for 512 acks).

A worker never waits for a row that another transaction has locked, say by offering its key again: SKIP LOCKED passes
it over, and it is settled later. So no user's transaction can stop a worker, and the two can't deadlock.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from delayedq.core.conditions import Lookup
from delayedq.sql import columns
from delayedq.sql.columns import history, listed, one_more
from delayedq.sql.dialects import BY_ROWS
from delayedq.sql.leases import run_out_by_claim, unheld
from delayedq.sql.priority import BOUNDARY
from delayedq.store import bare_sql, registry
from delayedq.store.offers import CONFLICT, INSERT, RETURNING
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from delayedq.core.conditions import Condition
    from delayedq.store.bare_queues import Matching

NOW = "coalesce(%(now)s::timestamptz, statement_timestamp())"

CLOCK = "SELECT statement_timestamp()"

SESSION = "SELECT pg_backend_pid()"

#: Prepared statements stay, and are planned anew.
DISCARD_PLANS = "DISCARD PLANS"

#: The last statement of a transaction and its commit, which takes place only if that succeeds; what undoes it if not.
AND_COMMIT = "SAVEPOINT delayedq_last; {}; COMMIT"
UNDO_LAST = "ROLLBACK TO SAVEPOINT delayedq_last"

ISOLATION = "SELECT current_setting('default_transaction_isolation')"

NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('delayedq', '')"

LISTEN = "LISTEN delayedq"

# Who waits for the end of a message, and the ends, which are told while somebody waits.
LISTEN_TO_WAITING, LISTEN_TO_ENDS = "LISTEN delayedq_waiting", "LISTEN delayedq_ended"

LISTEN_TO_STOPPED = "LISTEN delayedq_stopped"

NOTIFY_WAITING, NOTIFY_ENDS, NOTIFY_STOPPED = (
    NOTIFY.replace("'delayedq'", f"'delayedq_{what}'") for what in ("waiting", "ended", "stopped")
)


def free(condition: str = "", ids: str = "SELECT unnest(%(ids)s::bigint[])") -> str:
    """The rows of %(ids)s, or of those that a query gives, that no transaction has locked, for `id = ...`.

    In a batch of 512, these locks cost 0.7 us and 60 bytes of log per message.
    """
    return f"""ANY(ARRAY(
    SELECT id FROM delayedq_message
    WHERE id = ANY(ARRAY({ids})) {condition} FOR UPDATE SKIP LOCKED
))"""


FREE = free()

#: The same of one, for a statement that is planned without its values: of an array PostgreSQL expects ten.
FREE_ONE = """(
    SELECT id FROM delayedq_message WHERE id = (%(ids)s::bigint[])[1] FOR UPDATE SKIP LOCKED
)"""

HELD = "unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) AS held (id, token)"

PRESENT = "(SELECT lease_token FROM delayedq_message WHERE id = held.id)"

# Which of them carry their token, locked or not.
STILL_HELD = f"SELECT id FROM {HELD} WHERE {PRESENT} = held.token"


def unleased(message: str) -> str:
    """Nobody holds it: it has no lease, or one that ran out and was not renewed beside its row, which was locked."""
    return unheld(message, NOW, never="'-infinity'")


def expired(message: str) -> str:
    """Its lease has run out, if it has one."""
    return run_out_by_claim(message, NOW, never="'-infinity'")


def of_running_task(message: str) -> str:
    """Its task is not paused. The subquery is evaluated once, and reads an empty table while no task is.

    With `<> ALL(ARRAY(...))`, the planner would expect hardly any row to be left where all are of one task.
    """
    return f"{message}.kind NOT IN (SELECT kind FROM delayedq_pausedtask)"


# Reading ------------------------------------------------------------------------------------------------------------
#: What stands for each moment before the first one of Python.
_BEFORE_ALL = "'0001-01-03 00:00:00+00'"


def readable(moment: str) -> str:
    """The moment, or one near the end of those that Python has: PostgreSQL's go from -infinity to infinity.

    One row that can't be read would take the whole claim with it.
    """
    return f"""CASE WHEN {moment} < '0001-01-01 00:00:00+00' THEN {_BEFORE_ALL}
    WHEN {moment} >= '10000-01-01 00:00:00+00' THEN '9999-12-29 00:00:00+00' ELSE {moment} END"""


_FIRST_AT = readable("head.scheduled_at")

_WATERMARK = f"coalesce(nullif(lane.watermark, {_BEFORE_ALL}), '-infinity')"

_LANE_HEAD = f"lane.queue, lane.priority, {_FIRST_AT}, extract(epoch FROM {_FIRST_AT} - {NOW})::float8"

_HEAD = f"""(
    SELECT scheduled_at FROM delayedq_message AS message
    WHERE message.queue = lane.queue AND message.priority = lane.priority
        AND message.scheduled_at >= {_WATERMARK}
        AND {unleased("message")} AND {of_running_task("message")}
    ORDER BY scheduled_at LIMIT 1
) AS head"""

_LANES = """
unnest(%(queues)s::text[], %(priorities)s::smallint[], %(watermarks)s::timestamptz[])
    AS lane (queue, priority, watermark)
"""

_NOT_PAUSED = "lane.queue NOT IN (SELECT queue FROM delayedq_pausedqueue)"

# A loose scan of the due index: one probe per distinct (queue, priority), however many rows each has. The index is
# partial: the planner uses it only if the query compares `queue`, hence the always-true `queue >= ''`.
_ALL_LANES = """
WITH RECURSIVE lane AS (
    (SELECT queue, priority FROM delayedq_message WHERE queue >= '' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT following.queue, following.priority
    FROM lane
    CROSS JOIN LATERAL (
        SELECT queue, priority FROM delayedq_message
        WHERE queue >= lane.queue AND (queue, priority) > (lane.queue, lane.priority)
        ORDER BY queue, priority LIMIT 1
    ) AS following
)
"""

LANES = f"{_ALL_LANES} SELECT queue, priority FROM lane"

# Then one probe per lane for its first row that is not leased: 9 ms for 1,000 queues, and 0.6 to 1 s where 1,000,000
# dead rows that a snapshot keeps lie in front of it. (A claim from its watermark takes 4 ms then.)
SCAN = f"""
{_ALL_LANES}
SELECT {_LANE_HEAD}
FROM (SELECT queue, priority, NULL::timestamptz AS watermark FROM lane) AS lane
CROSS JOIN LATERAL {_HEAD}
WHERE (%(queues)s::text[] IS NULL OR lane.queue = ANY(%(queues)s::text[]))
    AND {_NOT_PAUSED}
"""

# The same loose scan, which goes from one known lane to the next by name: of a known lane it reads nothing but its
# first row from its watermark on, and between two of them there are only rows of lanes that nobody knows yet. These are
# four ranges: PostgreSQL 15 neither begins nor ends a scan at the second column of a comparison of rows.
SCAN_AHEAD = f"""
WITH RECURSIVE known AS MATERIALIZED (SELECT * FROM {_LANES}),
lane AS (
    SELECT ''::varchar AS queue, (-32768)::smallint AS priority
    UNION ALL
    SELECT coalesce(new.queue, later.queue)::varchar, coalesce(new.priority, later.priority)
    FROM lane
    LEFT JOIN LATERAL (
        SELECT queue, priority FROM known
        WHERE (known.queue, known.priority) > (lane.queue, lane.priority) ORDER BY queue, priority LIMIT 1
    ) AS later ON true
    LEFT JOIN LATERAL (
        (SELECT queue, priority FROM delayedq_message
        WHERE queue = lane.queue AND priority > lane.priority
            AND priority < CASE WHEN later.queue = lane.queue THEN later.priority ELSE 32768 END
        ORDER BY priority LIMIT 1)
        UNION ALL
        (SELECT queue, priority FROM delayedq_message
        WHERE queue > lane.queue AND queue < later.queue
        ORDER BY queue, priority LIMIT 1)
        UNION ALL
        (SELECT queue, priority FROM delayedq_message
        WHERE queue = later.queue AND priority < later.priority AND later.queue > lane.queue
        ORDER BY priority LIMIT 1)
        UNION ALL
        (SELECT queue, priority FROM delayedq_message
        WHERE queue > lane.queue AND later.queue IS NULL
        ORDER BY queue, priority LIMIT 1)
        ORDER BY queue, priority LIMIT 1
    ) AS new ON true
    WHERE new.queue IS NOT NULL OR later.queue IS NOT NULL
)
SELECT {_LANE_HEAD}
FROM (SELECT lane.queue, lane.priority, known.watermark FROM lane LEFT JOIN known USING (queue, priority)) AS lane
CROSS JOIN LATERAL {_HEAD}
WHERE (%(served)s::text[] IS NULL OR lane.queue = ANY(%(served)s::text[])) AND {_NOT_PAUSED}
"""

PEEK = f"SELECT {_LANE_HEAD} FROM {_LANES} CROSS JOIN LATERAL {_HEAD} WHERE {_NOT_PAUSED}"

# Claiming -----------------------------------------------------------------------------------------------------------
CLAIMED = ", ".join(
    f"{readable(f'message.{name}')} AS {name}" if name in columns.CLAIMED_TIMES else f"message.{name}"
    for name in columns.CLAIMED
)

LEASE = f"""
UPDATE delayedq_message AS message
SET lease_token = %(token)s, leased_until = {NOW} + %(lease)s, claimed_at = {NOW}, leased_by = %(worker)s,
    attempt = {one_more("message.attempt")}
"""

# Each lane is one range of the due index, probed in the given order until the limit is reached, so that rows of the
# future are never visited. ARRAY() is evaluated once: the limit is exact, and the update goes by primary key whatever
# the statistics say. `{settled}` makes the statement settle first, if it also settles.
_CLAIM = f"""
{LEASE}
WHERE message.id = ANY(ARRAY(
    SELECT head.id
    FROM {_LANES}
    CROSS JOIN LATERAL (
        SELECT due.id FROM delayedq_message AS due
        WHERE due.queue = lane.queue AND due.priority = lane.priority
            AND due.scheduled_at >= {_WATERMARK} AND due.scheduled_at <= {NOW}
            AND (due.lease_token IS NULL OR %(expired)s AND {expired("due")}) AND {of_running_task("due")}
        ORDER BY due.scheduled_at, due.id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS head
    WHERE {_NOT_PAUSED} {{settled}}
    LIMIT %(limit)s
))
RETURNING {CLAIMED}
"""

CLAIM = _CLAIM.format(settled="")

CLAIM_UNCHANGED = f"""
{LEASE}
WHERE message.id = ANY(ARRAY(
    SELECT one.id FROM delayedq_message AS one
    WHERE one.id = %(id)s AND one.generation = %(generation)s AND {unleased("one")}
    FOR UPDATE SKIP LOCKED
))
RETURNING {CLAIMED}
"""

# Settling -----------------------------------------------------------------------------------------------------------
HISTORY = f"INSERT INTO delayedq_finishedmessage ({listed(columns.HISTORY)})"

# By primary key, fenced by token and generation; the history row is written by the statement that deletes.
_RECORD = history(
    finished_at=f"{NOW} - finished_us * interval '1 microsecond'",
    started_at=f"{NOW} - started_us * interval '1 microsecond'",
    attempts="attempt - CASE WHEN started_us IS NULL THEN 1 ELSE 0 END",
    outcome="outcome",
    result="result",
    errors="coalesce(new_errors, errors)",
    error="error",
    fingerprint="fingerprint",
)

ENDED = f"""
ended AS (
    DELETE FROM delayedq_message AS message
    USING unnest(
        %(ids)s::bigint[], %(tokens)s::bigint[], %(generations)s::int[], %(outcomes)s::text[],
        %(started_us)s::float8[], %(finished_us)s::float8[], %(results)s::text[], %(errors)s::text[],
        %(error_lines)s::text[], %(fingerprints)s::bigint[]
    ) AS finish (id, token, generation, outcome, started_us, finished_us, result, errors, error, fingerprint)
    WHERE message.id = {{free}} AND message.id = finish.id
        AND message.lease_token = finish.token AND message.generation = finish.generation
    RETURNING message.*, coalesce(finish.outcome, 'succeeded') AS outcome, finish.started_us, finish.finished_us,
        finish.result, finish.errors AS new_errors, finish.error, finish.fingerprint
),
recorded AS (
    {HISTORY}
    SELECT {_RECORD} FROM ended
),
-- NULL says that all of them ended.
answer AS (
    SELECT CASE WHEN count(*) < cardinality(%(ids)s::bigint[]) THEN coalesce(array_agg(id), '{{{{}}}}') END AS ids
    FROM ended
)
"""

FINISH, FINISH_ONE = (f"WITH {ENDED.format(free=one)} SELECT ids FROM answer" for one in (FREE, FREE_ONE))

#: The same of one, which fails if that did not end. Without a column, the cast would be tried when it is planned.
FINISH_OR_FAIL = f"""
WITH {ENDED.format(free=FREE_ONE)}
SELECT CASE WHEN ids IS NOT NULL
    THEN ('delayedq: message ' || (%(ids)s::bigint[])[1] || ' did not end ' || ids::text)::int END
FROM answer
"""

# In batches of 512, 15.4 us of processor time per message, both sides together, against 16.1 for a finish and a claim;
# and one flush of the log instead of two.
_SETTLE_AND_CLAIM = f"""
{ENDED},
{{after}}
claimed AS ({_CLAIM.format(settled="AND (SELECT count(*) FROM ended) >= 0 {condition}")})
SELECT answer.ids, claimed.* FROM answer LEFT JOIN claimed ON true
"""

SETTLE_AND_CLAIM = f"WITH {_SETTLE_AND_CLAIM.format(free=FREE, condition='', after='')}"


def settle_and_claim_if(condition: str, before: str, after: str) -> str:
    """SETTLE_AND_CLAIM, which does nothing unless this holds; with other queries of its WITH before and after it."""
    guard = f"AND {condition}"
    both = _SETTLE_AND_CLAIM.format(free=free(guard), condition=guard, after=f"{after},")
    return f"WITH {before}, {both}"


GIVE_BACK = f"""
UPDATE delayedq_message AS message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL,
    attempt = message.attempt - CASE WHEN back.charged THEN 0 ELSE 1 END,
    scheduled_at = coalesce(back.until, {NOW} + back.delay * interval '1 second', message.scheduled_at),
    errors = coalesce(back.errors, message.errors), metadata = coalesce(back.metadata, message.metadata)
FROM unnest(
    %(ids)s::bigint[], %(tokens)s::bigint[], %(generations)s::int[], %(charged)s::boolean[],
    %(delays)s::float8[], %(untils)s::timestamptz[], %(errors)s::text[], %(metadata)s::text[]
) AS back (id, token, generation, charged, delay, until, errors, metadata)
WHERE message.id = {FREE} AND message.id = back.id
    AND message.lease_token = back.token AND message.generation = back.generation
RETURNING message.id
"""

DISCARD = f"""
DELETE FROM delayedq_message AS message
USING unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(generations)s::int[]) AS held (id, token, generation)
WHERE message.id = {FREE} AND message.id = held.id
    AND message.lease_token = held.token AND message.generation = held.generation
RETURNING message.id
"""

# What was replaced while its attempt ran is free again: as the replacement left it, whose attempts begin at 0.
REARM = f"""
UPDATE delayedq_message AS message
SET lease_token = NULL, leased_until = NULL, leased_by = NULL
FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(generations)s::int[]) AS held (id, token, generation)
WHERE message.id = {FREE} AND message.id = held.id
    AND message.lease_token = held.token AND message.generation <> held.generation
RETURNING message.id
"""

_SUPERSEDED = history(
    id="nextval(pg_get_serial_sequence('delayedq_message', 'id'))",
    finished_at=f"{NOW} - finished * interval '1 second'",
    started_at=f"{NOW} - started * interval '1 second'",
    outcome="'superseded'",
    worker="%(worker)s",
    errors="coalesce(new_errors, errors)",
)

RECORD_SUPERSEDED = f"""
{HISTORY}
SELECT {_SUPERSEDED}
FROM json_to_recordset(%(records)s::json) AS ran (
    finished float8, started float8, scheduled_at timestamptz, scheduled_at_initially timestamptz,
    created_at timestamptz, priority smallint, attempt smallint, max_attempts smallint,
    queue text, kind text, key text, payload text, metadata text, errors text, new_errors text
)
"""

# Taking back --------------------------------------------------------------------------------------------------------
_CANCEL = f"""
WITH ended AS (
    DELETE FROM delayedq_message WHERE {{which}} RETURNING *
)
{HISTORY}
SELECT {history(finished_at=NOW, errors="{errors}")} FROM ended
RETURNING id
"""

WITHDRAW = _CANCEL.format(which=f"id = {FREE} AND lease_token IS NULL AND attempt = 0", errors="%(errors)s")

# The lease keeper prunes, and must not wait longer than 1 s for a lock: renewals come first. Answers whether the
# history is partitioned (`postgresql.partitions`).
BEFORE_PRUNING = """
SELECT relkind = 'p', set_config('lock_timeout', '1s', true) FROM pg_class
WHERE oid = 'delayedq_finishedmessage'::regclass
"""

# Migrations ---------------------------------------------------------------------------------------------------------
#: A transaction that holds a lock for hours, if need be. It waits for that for 10 minutes at most.
LONG_TRANSACTION = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    """
    SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN '10min' ELSE '0' END, true) FROM pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout', 'lock_timeout')
    """,
)
#: The lock of whoever migrates: a number of its own among the advisory locks of the database. That of whoever makes or
#: drops partitions is `partitions.ALONE`.
MIGRATION_LOCK = "SELECT pg_try_advisory_xact_lock(4990113571238846)"
PARTITIONS_LOCK = "SELECT pg_advisory_xact_lock(4990113571238847)"

#: Claims wait behind a migration that waits for a table: so long, and the moment of the change itself.
MIGRATION_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"
LOCK_TIMEOUT_NOW = "SELECT current_setting('lock_timeout')"
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %(timeout)s, true)"

PARTITIONS = """
SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = to_regclass(%(table)s)
ORDER BY relname
"""

# History ------------------------------------------------------------------------------------------------------------
FINISHED = "SELECT id FROM delayedq_finishedmessage WHERE id = ANY(%(ids)s::bigint[])"

#: What others need stays (`retention`). An initial plan, evaluated once: the scan by `finished_at` begins behind it.
UNNEEDED = " AND finished_at >= coalesce(({needed}), '-infinity')"

PRUNE = f"""
DELETE FROM delayedq_finishedmessage
WHERE id = ANY(ARRAY(
    SELECT id FROM delayedq_finishedmessage
    WHERE finished_at < {NOW} - %(older_than)s AND outcome <> 'failed'{{unneeded}}
    ORDER BY finished_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING id
"""

#: The same of a partitioned history, which loses whole months by itself: what of them could not be dropped for a day.
_MONTH = f"finished_at < date_trunc('month', {NOW} - %(older_than)s - interval '1 day', 'UTC')"
PRUNE_PARTITIONED = f"""
DELETE FROM delayedq_finishedmessage
WHERE {_MONTH} AND id = ANY(ARRAY(
    SELECT id FROM delayedq_finishedmessage
    WHERE {_MONTH} AND outcome <> 'failed'{{unneeded}}
    ORDER BY finished_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING id
"""

OTHER_SESSIONS = """
SELECT pid FROM pg_stat_activity WHERE application_name = %(application)s AND pid <> pg_backend_pid()
"""

END_SESSION = "SELECT pg_terminate_backend(%(session)s)"

#: That of a client which was connected for %(age)s seconds, and no other one that has its number: another server has
#: numbers of its own, and a pooler makes them up.
END_LOST_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %(session)s AND usename = session_user AND datname = current_database()
    AND clock_timestamp() - backend_start BETWEEN make_interval(secs => %(age)s - 1)
        AND make_interval(secs => %(age)s + 60)
"""

#: The room under the limits of the server, of the role and of the database. A superuser is under the first alone.
CONNECTIONS_LEFT = """
SELECT least(
    current_setting('max_connections')::int - CASE WHEN role.rolsuper THEN 0 ELSE
        current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0) END - count(*),
    CASE WHEN role.rolconnlimit >= 0 AND NOT role.rolsuper
        THEN role.rolconnlimit - count(*) FILTER (WHERE session.usesysid = role.oid) END,
    CASE WHEN db.datconnlimit >= 0 AND NOT role.rolsuper
        THEN db.datconnlimit - count(*) FILTER (WHERE session.datid = db.oid) END
)
FROM pg_catalog.pg_roles AS role, pg_catalog.pg_database AS db, pg_catalog.pg_stat_activity AS session
WHERE role.rolname = session_user AND db.datname = current_database() AND session.datid IS NOT NULL
GROUP BY role.rolsuper, role.rolconnlimit, role.oid, db.datconnlimit, db.oid
"""


# How messages come into the queue on PostgreSQL.


OFFER_TEXTS = ("queue", "kind", "key", "payload", "metadata")

OFFER_COLUMNS = (*OFFER_TEXTS, "priority", "max_attempts", "scheduled_at")

_OFFER = f"""
{INSERT}
VALUES (%(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s,
    coalesce(%(scheduled_at)s::timestamptz, {NOW}), coalesce(%(scheduled_at)s::timestamptz, {NOW}), {NOW}, 0, 0)
{{conflict}}
{RETURNING}
"""

# What all messages of a batch have in common comes once, as `same_...`, and not as an array: 10,000 without keys take
# 34 ms instead of 54.
_QUEUE_AND_KIND = "coalesce(queue, %(same_queue)s::text) AS queue, coalesce(kind, %(same_kind)s::text) AS kind"

_VALUES = f"""
    coalesce(priority, %(same_priority)s::smallint), coalesce(max_attempts, %(same_max_attempts)s::smallint),
    payload, coalesce(metadata, %(same_metadata)s::text), coalesce(scheduled_at, {NOW}), coalesce(scheduled_at, {NOW}),
    {NOW}, 0, 0
"""

_ARRAYS = """%(queue)s::text[], %(kind)s::text[], %(priority)s::smallint[], %(max_attempts)s::smallint[],
    %(payload)s::text[], %(metadata)s::text[], %(scheduled_at)s::timestamptz[]"""

_GIVEN = "queue, kind, priority, max_attempts, payload, metadata, scheduled_at"

# Without a key nothing is in the way, and no order is needed.
STORE_UNKEYED = f"""
{INSERT}
SELECT {_QUEUE_AND_KIND}, NULL, {_VALUES}
FROM unnest({_ARRAYS}) AS given ({_GIVEN})
"""

OFFER_UNKEYED = f"{STORE_UNKEYED} RETURNING id"

# Ids are drawn in the order of the offers, and rows are inserted in the order of their keys, as `in_lock_order` has it:
# two batches that share keys lock them alike and can't deadlock.
_STORE_MANY = f"""
WITH offer AS MATERIALIZED (
    SELECT nextval((SELECT pg_get_serial_sequence('delayedq_message', 'id')::regclass)) AS id, {_QUEUE_AND_KIND}, key,
        priority, max_attempts, payload, metadata, scheduled_at
    FROM unnest({_ARRAYS}, %(key)s::text[]) AS given ({_GIVEN}, key)
)
{INSERT.replace("queue,", "id, queue,", 1)}
SELECT id, queue, kind, key, {_VALUES}
FROM offer
ORDER BY kind COLLATE "C", key COLLATE "C"
{{conflict}}
"""

# Of different times, for which ids need no order, and sorted by key already: 10,000 take 77 ms here instead of
# 90, and sorting them takes 1 ms there.
STORE_SORTED = f"""
{INSERT}
SELECT {_QUEUE_AND_KIND}, key, {_VALUES}
FROM unnest({_ARRAYS}, %(key)s::text[]) AS given ({_GIVEN}, key)
{CONFLICT[OnConflict.REPLACE]}
"""

OFFER = _OFFER.format(conflict="")

OFFER_KEYED = {policy: _OFFER.format(conflict=clause) for policy, clause in CONFLICT.items()}

STORE_MANY = _STORE_MANY.format(conflict=CONFLICT[OnConflict.REPLACE])

OFFER_MANY = {policy: _STORE_MANY.format(conflict=f"{clause} {RETURNING}") for policy, clause in CONFLICT.items()}


# Renewing and releasing leases on PostgreSQL, also those of locked rows (see `delayedq.store.base`).


# What was not renewed: the seconds that are left of leases whose rows are locked, NULL for those that are lost.
RENEW = f"""
WITH renewed AS (
    UPDATE delayedq_message AS message
    SET leased_until = greatest(message.leased_until, {NOW} + %(lease)s)
    FROM {HELD}
    WHERE message.id = {FREE} AND message.id = held.id AND message.lease_token = held.token
    RETURNING message.id, message.lease_token
)
SELECT id, token, (
    SELECT extract(epoch FROM greatest(message.leased_until, renewal.leased_until) - {NOW})::float8
    FROM delayedq_message AS message LEFT JOIN delayedq_lockedrenewal AS renewal
        ON renewal.message_id = message.id AND renewal.lease_token = message.lease_token
    WHERE message.id = held.id AND message.lease_token = held.token
)
FROM {HELD} WHERE (id, token) NOT IN (SELECT id, lease_token FROM renewed)
"""

# Rows come in the order of their ids: two keepers can't deadlock. Who lost the message meanwhile writes nothing: that
# would overwrite the renewal of its next holder.
KEEP_LOCKED = f"""
INSERT INTO delayedq_lockedrenewal AS renewal (message_id, lease_token, leased_until)
SELECT id, token, {NOW} + %(lease)s FROM {HELD} WHERE {PRESENT} = held.token
ON CONFLICT (message_id) DO UPDATE SET lease_token = excluded.lease_token, leased_until = CASE
    WHEN renewal.lease_token = excluded.lease_token THEN greatest(renewal.leased_until, excluded.leased_until)
    ELSE excluded.leased_until
END
"""

FORGET_LOCKED = f"""
DELETE FROM delayedq_lockedrenewal AS renewal USING {HELD}
WHERE renewal.message_id = held.id AND renewal.lease_token = held.token
"""

FORGET_EXPIRED = f"DELETE FROM delayedq_lockedrenewal WHERE leased_until <= {NOW}"

# What was not released, and whether its row, which is locked then, still carries the token. A message that was replaced
# meanwhile has no attempt to give back.
RELEASE = f"""
WITH released AS (
    UPDATE delayedq_message AS message
    SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = greatest(message.attempt - 1, 0)
    FROM {HELD}
    WHERE message.id = {FREE} AND message.id = held.id AND message.lease_token = held.token
    RETURNING message.id, held.token
),
-- The places of those that were replaced into another channel meanwhile, which were held where they were claimed.
let_go AS (
    DELETE FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(
        SELECT message_id FROM delayedq_channelmessage
        WHERE message_id = ANY(ARRAY(SELECT ~(id # token) FROM released)) FOR UPDATE SKIP LOCKED
    ))
    RETURNING channel_id
),
-- The channels of those that have one are to be looked at: there is room.
freed AS (
    SELECT channel_id FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(SELECT id FROM released))
    UNION SELECT channel_id FROM let_go
),
-- LIMIT keeps the planner from joining them otherwise than by their keys.
told AS (
    INSERT INTO delayedq_channelnotice (channel_id, group_id, queue, kind, name, at, ended, seconds)
    SELECT channel.id, channel.group_id, its.queue, its.kind, channel.name, {NOW}, 0, 0
    FROM freed
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channel WHERE id = freed.channel_id LIMIT 1) AS channel
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channelgroup WHERE id = channel.group_id LIMIT 1) AS its
)
SELECT id, token, coalesce({PRESENT} = held.token, false)
FROM {HELD} WHERE (id, token) NOT IN (SELECT id, token FROM released)
"""


# Places that are held for attempts, in the statements on PostgreSQL that end their messages.
#
# See `limits.places_held`.


#: The message of a place that a claim has taken.
MESSAGE = """CASE WHEN place.message_id < 0 THEN (~place.message_id) # place.lease_token ELSE place.message_id END"""

# Of the messages in `ended`, those that run in a channel, or ran out and can be renewed yet: their places are held as
# long as their leases. The place is found by the id alone, and locked, so that it is the newest: a transaction that has
# committed meanwhile may have moved it, and a claim may have taken it, which this statement does not see otherwise.
HOLD = f"""
held AS (
    INSERT INTO delayedq_channelmessage AS known
        (message_id, channel_id, group_id, urgency, due_at, lease_token, held_until)
    SELECT ~(ended.id # ended.lease_token), place.channel_id, place.group_id, place.urgency, place.due_at,
        ended.lease_token, greatest(ended.leased_until, (
            SELECT leased_until FROM delayedq_lockedrenewal AS renewal
            WHERE renewal.message_id = ended.id AND renewal.lease_token = ended.lease_token
        ))
    FROM ended
    CROSS JOIN LATERAL (SELECT * FROM delayedq_channelmessage WHERE message_id = ended.id LIMIT 1 FOR UPDATE) AS place
    WHERE ended.priority < {BOUNDARY} AND ended.lease_token IS NOT NULL
    ON CONFLICT (message_id) DO UPDATE SET held_until = greatest(known.held_until, excluded.held_until)
    RETURNING (~message_id) # lease_token AS id
)
"""


# The statements on PostgreSQL that end the messages of a key or of a queue.


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


# The heartbeat of worker processes on PostgreSQL.


HEARTBEAT = f"""
{registry.INSERT}
SELECT {registry.COLUMNS}, clock.moment - given.age * interval '1 second', clock.moment
FROM json_to_recordset(%(workers)s::json) AS given (
    name text, host text, pid int, threads int, queues text, excluded_queues text, lease float8, held int, running text,
    problems text, age float8
), (SELECT {NOW} AS moment) AS clock
{registry.ON_CONFLICT}
"""


# The statements of bare queues on PostgreSQL: what is claimed by conditions, and pages. See `sql`.


PAGE = bare_sql.page(BY_ROWS, unleased("message"))

# The column compares by code points, as migration 0001 has it; here it is said again, for what is asked depends on it.
_WITHIN = 'key COLLATE "C" >= %(first)s AND key COLLATE "C" <= %(last)s'

KEYS = bare_sql.keys(_WITHIN)

# The payload as JSON in which every escape of a character stands for its own letters, those of a backslash for two
# control characters: PostgreSQL refuses to read texts with a NUL or half a surrogate pair, which a payload may hold.
_DOCUMENT = r"replace(replace(due.payload, '\\', '\b\f'), '\u', '\\u')::json"

# Equal values have equal texts, if they are written as the document is.
_IN = r"""coalesce((document #> %(path_{number})s::text[])::text = ANY(
    SELECT replace(replace(wanted, '\\', '\b\f'), '\u', '\\u') FROM unnest(%(values_{number})s::text[]) AS wanted
), false)"""

# Ints exactly; else as floats, and what is beyond those as the largest of them. (Of NULL and that, greatest() and
# least() take that: what is no number is left out before.)
_LARGEST = "1.7976931348623157e308"

_RANGE = f"""coalesce((
    SELECT CASE
        WHEN json_typeof(value) IS DISTINCT FROM 'number' THEN false
        WHEN %(exact_{{number}})s AND value::text !~ '[.eE]'
            THEN value::text::numeric {{sign}} %(bound_{{number}})s::numeric
        ELSE greatest(least(value::text::numeric, {_LARGEST}), -{_LARGEST})::float8
            {{sign}} %(bound_{{number}})s::float8
    END
    FROM (SELECT document #> %(path_{{number}})s::text[] AS value OFFSET 0) AS found
), false)"""

SIGNS = {Lookup.GT: ">", Lookup.GTE: ">=", Lookup.LT: "<", Lookup.LTE: "<="}

_CLAIM_MATCHING = f"""
{LEASE}
WHERE message.id = ANY(ARRAY(
    SELECT due.id FROM delayedq_message AS due
    WHERE {{place}} AND due.priority = %(priority)s
        AND due.scheduled_at >= coalesce(%(watermark)s::timestamptz, '-infinity') AND due.scheduled_at <= {NOW}
        AND {unleased("due")} {{asked}}
    ORDER BY due.scheduled_at, due.id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING {CLAIMED}
"""


def claim_matching(matching: Matching) -> str:
    """By the index of keys, the statement does not compare `queue`: the due index can't be used, whose condition is."""
    asked = [] if matching.keys is None else [_WITHIN]
    if tests := " AND ".join(starmap(_test, enumerate(matching.conditions))):
        # A scalar subquery, which the planner evaluates after all that is cheaper; it reads the document once.
        asked.append(f"(SELECT {tests} FROM (SELECT {_DOCUMENT} AS document OFFSET 0) AS readable)")
    place = "due.kind = %(queue)s" if matching.by_key else "due.queue = %(queue)s"
    return _CLAIM_MATCHING.format(place=place, asked=" ".join(f"AND {one}" for one in asked))


def _test(number: int, condition: Condition) -> str:
    if condition.lookup is Lookup.IN:
        return _IN.format(number=number)
    return _RANGE.format(number=number, sign=SIGNS[condition.lookup])
