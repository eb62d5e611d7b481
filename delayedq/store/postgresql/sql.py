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

from delayedq.store import columns
from delayedq.store.columns import history, listed

NOW = "coalesce(%(now)s::timestamptz, statement_timestamp())"

CLOCK = "SELECT statement_timestamp()"
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

HELD = "unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) AS held (id, token)"

PRESENT = "(SELECT lease_token FROM delayedq_message WHERE id = held.id)"

# Which of them carry their token, locked or not.
STILL_HELD = f"SELECT id FROM {HELD} WHERE {PRESENT} = held.token"


def unleased(message: str) -> str:
    """Nobody holds it: it has no lease, or one that ran out and was not renewed beside its row, which was locked.

    The subquery is evaluated only for leases that ran out.
    """
    return f"({message}.lease_token IS NULL OR {expired(message)})"


def expired(message: str) -> str:
    return f"""{message}.leased_until <= {NOW} AND coalesce((
        SELECT renewal.leased_until FROM delayedq_lockedrenewal AS renewal
        WHERE renewal.message_id = {message}.id AND renewal.lease_token = {message}.lease_token
    ), '-infinity') <= {NOW}"""


def of_running_task(message: str) -> str:
    """Its task is not paused. The subquery is evaluated once, and reads an empty table while no task is.

    With `<> ALL(ARRAY(...))`, the planner would expect hardly any row to be left where all are of one task.
    """
    return f"{message}.kind NOT IN (SELECT kind FROM delayedq_pausedtask)"


# Reading ------------------------------------------------------------------------------------------------------------

_LANE_HEAD = f"lane.queue, lane.priority, head.scheduled_at, extract(epoch FROM head.scheduled_at - {NOW})::float8"

_HEAD = f"""(
    SELECT scheduled_at FROM delayedq_message AS message
    WHERE message.queue = lane.queue AND message.priority = lane.priority
        AND message.scheduled_at >= coalesce(lane.watermark, '-infinity')
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

PEEK = f"SELECT {_LANE_HEAD} FROM {_LANES} CROSS JOIN LATERAL {_HEAD} WHERE {_NOT_PAUSED}"

# Claiming -----------------------------------------------------------------------------------------------------------

CLAIMED = listed(f"message.{name}" for name in columns.CLAIMED)

LEASE = f"""
UPDATE delayedq_message AS message
SET lease_token = %(token)s, leased_until = {NOW} + %(lease)s, claimed_at = {NOW}, leased_by = %(worker)s,
    attempt = message.attempt + 1
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
            AND due.scheduled_at >= coalesce(lane.watermark, '-infinity') AND due.scheduled_at <= {NOW}
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
_ENDED = f"""
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
FINISH = f"WITH {_ENDED.format(free=FREE)} SELECT ids FROM answer"

# In batches of 512, 15.4 us of processor time per message, both sides together, against 16.1 for a finish and a claim;
# and one flush of the log instead of two.
_SETTLE_AND_CLAIM = f"""
{_ENDED},
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

# The lease keeper prunes, and must not wait longer than 1 s for a lock: renewals come first.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1s'"

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
