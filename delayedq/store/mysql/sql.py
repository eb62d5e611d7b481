"""The statements of the store on MariaDB and MySQL, in what both of them understand.

`now` is a text in UTC, or NULL for the server's clock. Ids, names, and whatever else differs from row to row travel as
one JSON document: the number of statements does not grow with a batch. It is always read first, and each of its rows
looks up one message. FORCE INDEX and STRAIGHT_JOIN leave the planner no other way, whatever its statistics say: given
a list of ids and a small table, it would scan the table, and wait for locks that it passes.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from delayedq.core.conditions import Lookup
from delayedq.sql import columns
from delayedq.sql.columns import REVIVED, history, listed, one_more
from delayedq.sql.dialects import BY_CHOICE
from delayedq.sql.leases import run_out_by_claim, unheld
from delayedq.sql.priority import BOUNDARY, given_priority, moved_priority, revived_priority
from delayedq.store import bare_sql, registry
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from delayedq.core.conditions import Condition
    from delayedq.store.bare_queues import Matching

_MOMENT = "coalesce(CAST({} AS DATETIME(6)), UTC_TIMESTAMP(6))"

NOW = _MOMENT.format("%(now)s")

#: A word of its own, which has to be quoted where it stands for the column.
KEY = "`key`"

# The documents, and the messages they are about. The server would take texts for those of its default character set.
VARCHAR, LONGTEXT = "VARCHAR(200) CHARACTER SET utf8mb4", "LONGTEXT CHARACTER SET utf8mb4"

IDS = "JSON_TABLE(%(ids)s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS given"

_NAMES = f"""JSON_TABLE(%(names)s, '$[*]' COLUMNS (
    kind {VARCHAR} PATH '$[0]', `key` {VARCHAR} PATH '$[1]'
)) AS given"""

# Of reads that lock. To MySQL, a function that is joined to a table is in "multiple locking clauses"; a query is not.
LOCKED_IDS, _LOCKED_NAMES = f"(SELECT * FROM {IDS}) AS given", f"(SELECT * FROM {_NAMES}) AS given"

BY_ID = "STRAIGHT_JOIN delayedq_message AS message FORCE INDEX (PRIMARY) ON message.id = given.id"

_BY_KEY = """
STRAIGHT_JOIN delayedq_message AS message FORCE INDEX (delayedq_key)
    ON message.kind = given.kind AND message.`key` = given.`key`
"""

CLOCK = "SELECT UTC_TIMESTAMP(6)"

PACKET = "SELECT @@max_allowed_packet"

# Every new message has a higher id than all before it. What is paused or resumed changes the others.
NEWEST = """
SELECT (SELECT coalesce(max(id), 0) FROM delayedq_message),
    (SELECT count(*) FROM delayedq_pausedqueue), (SELECT coalesce(max(id), 0) FROM delayedq_pausedqueue),
    (SELECT count(*) FROM delayedq_pausedtask), (SELECT coalesce(max(id), 0) FROM delayedq_pausedtask)
"""

# Offers -------------------------------------------------------------------------------------------------------------

# A replaced message starts over, and offered again as it stands nothing is written: see offers.py. Assignments happen
# from left to right and see the new values of those before, so the verdict comes first, as an attempt that no message
# has: -1 for another payload, -2 for another time too. An ignored offer answers with its message's id below zero.
_UPDATE = """
ON DUPLICATE KEY UPDATE
    attempt = CASE
        WHEN ({moves}) AND (scheduled_at_initially <> VALUES(scheduled_at) OR {differs}) THEN -2
        WHEN {differs} THEN -1
        ELSE attempt
    END,
    queue = VALUES(queue), priority = VALUES(priority), max_attempts = VALUES(max_attempts),
    payload = VALUES(payload), metadata = VALUES(metadata),
    scheduled_at = IF(attempt = -2, VALUES(scheduled_at), scheduled_at),
    scheduled_at_initially = IF(attempt = -2, VALUES(scheduled_at), scheduled_at_initially),
    errors = IF(attempt < 0, NULL, errors),
    generation = generation + IF(attempt < 0, LAST_INSERT_ID(id) <> 0, LAST_INSERT_ID(-id) = 0),
    attempt = IF(attempt < 0, 0, attempt)
"""

_DIFFERS = """(
    payload <> VALUES(payload) OR queue <> VALUES(queue) OR priority <> VALUES(priority)
    OR max_attempts <> VALUES(max_attempts) OR coalesce(metadata, '') <> coalesce(VALUES(metadata), '')
)"""

_RUNS = "lease_token IS NOT NULL AND attempt > 0"


def _update(moves: str) -> str:
    return _UPDATE.format(moves=moves, differs=_DIFFERS)


CONFLICT = {
    OnConflict.REPLACE: _update("1 = 1"),
    OnConflict.KEEP: "ON DUPLICATE KEY UPDATE generation = generation + (LAST_INSERT_ID(-id) = 0)",
    OnConflict.PRESERVE_TIME: _update(_RUNS),
    OnConflict.EARLIEST: _update(f"{_RUNS} OR VALUES(scheduled_at) < scheduled_at"),
    OnConflict.LATEST: _update(f"{_RUNS} OR VALUES(scheduled_at) > scheduled_at"),
}

_INSERT = f"INSERT INTO delayedq_message ({listed(columns.MESSAGE, key=KEY)}) VALUES "

_DUE = _MOMENT.format("%s")

_ROW = f"(%s, %s, %s, %s, %s, %s, %s, {_DUE}, {_DUE}, {_DUE}, 0, 0)"


def insert(rows: int, on_conflict: OnConflict) -> str:
    """Each row takes columns.OFFER, its time twice, and now."""
    return _INSERT + ", ".join([_ROW] * rows) + CONFLICT[on_conflict]


def insert_many(rows: int, on_conflict: OnConflict) -> str:
    """The same, but it answers with the first id that it created, and with 0 if it created nothing.

    Unless told so by LAST_INSERT_ID(0), the server would answer with the id of the last row, if it changed any.
    """
    answers = {"LAST_INSERT_ID(id) <> 0": "LAST_INSERT_ID(0) = 0", "LAST_INSERT_ID(-id) = 0": "LAST_INSERT_ID(0) <> 0"}
    statement = insert(rows, on_conflict)
    for answer, number in answers.items():
        statement = statement.replace(answer, number)
    return statement


_STORED = "SELECT message.kind, message.`key`, message.id, generation FROM {} {}"

STORED = _STORED.format(_NAMES, _BY_KEY)

# What is there already, locked in the order of the names: two batches that share keys can't deadlock over it.
KNOWN = f"{_STORED.format(_LOCKED_NAMES, _BY_KEY)} FOR UPDATE"

#: The ids that one statement creates are so far apart; more than 1 in a cluster of several masters.
STEP = "SELECT @@auto_increment_increment"


def unleased(message: str, now: str = NOW) -> str:
    """Nobody holds it: it has no lease, or one that ran out and was not renewed beside its locked row."""
    return unheld(message, now, never=f"{message}.leased_until", hint="FORCE INDEX (PRIMARY)")


def expired(message: str, now: str = NOW) -> str:
    """Its lease has run out, if it has one."""
    return run_out_by_claim(message, now, never=f"{message}.leased_until", hint="FORCE INDEX (PRIMARY)")


# Reading ------------------------------------------------------------------------------------------------------------
_NEXT_LANE = """
SELECT queue, priority, queue IN (SELECT queue FROM delayedq_pausedqueue)
FROM delayedq_message FORCE INDEX (delayedq_due)
WHERE (queue > %(queue)s OR queue = %(queue)s AND priority > %(priority)s) {before}
ORDER BY queue, priority LIMIT 1
"""

NEXT_LANE = _NEXT_LANE.format(before="")

NEXT_LANE_BEFORE = _NEXT_LANE.format(
    before="AND (queue < %(before_queue)s OR queue = %(before_queue)s AND priority < %(before_priority)s)"
)

_NOT_PAUSED = """queue NOT IN (SELECT queue FROM delayedq_pausedqueue)
    AND kind NOT IN (SELECT kind FROM delayedq_pausedtask)"""

_HEAD = f"""(
    SELECT queue, priority, scheduled_at, TIMESTAMPDIFF(MICROSECOND, {_DUE}, scheduled_at) / 1e6
    FROM delayedq_message FORCE INDEX (delayedq_due)
    WHERE queue = %s AND priority = %s AND scheduled_at >= %s AND {unleased("delayedq_message", _DUE)}
        AND {_NOT_PAUSED}
    ORDER BY scheduled_at LIMIT 1
)"""


def heads(lanes: int) -> str:
    """The first free row of each lane, which takes now, queue, priority, watermark, and now twice."""
    return " UNION ALL ".join([_HEAD] * lanes)


# Claiming -----------------------------------------------------------------------------------------------------------
#: As texts, which are read faster here than by the driver, one by one; not by their names, or they would be sorted so.
_TIMES = {name: f"CAST({name} AS CHAR)" for name in columns.CLAIMED_TIMES}

_CLAIM = {"lease_token": "%(token)s", "key": KEY, "attempt": one_more(), **_TIMES}

CLAIMABLE_WHERE = f"""
SELECT {listed(columns.CLAIMED, **_CLAIM)}
FROM delayedq_message FORCE INDEX ({{index}})
WHERE {{which}} AND (lease_token IS NULL OR %(expired)s AND {expired("delayedq_message")})
{{order}}
FOR UPDATE SKIP LOCKED
"""

LANE = f"""
queue = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= {NOW}
    AND {_NOT_PAUSED}
"""

IN_ORDER = "ORDER BY scheduled_at, id LIMIT %(limit)s"

# One range of the due index. A row that another transaction has locked is passed over, so that no claim waits.
CLAIMABLE = CLAIMABLE_WHERE.format(index="delayedq_due", which=LANE, order=IN_ORDER)

CLAIMABLE_UNCHANGED = CLAIMABLE_WHERE.format(
    index="PRIMARY", which="id = %(id)s AND generation = %(generation)s", order=""
)

LEASE = f"""
UPDATE {IDS} {BY_ID}
SET lease_token = %(token)s, leased_until = {NOW} + INTERVAL %(lease)s MICROSECOND, claimed_at = {NOW},
    leased_by = %(worker)s, attempt = {one_more()}
"""

# Locking ------------------------------------------------------------------------------------------------------------

# The rows that no transaction has locked. Before a keyed message is deleted its key is locked, then the row, as by an
# offer of that key: else each could hold what the other waits for.
_FREE = "SELECT message.id, lease_token, generation, attempt FROM {} FOR UPDATE SKIP LOCKED"

FREE = _FREE.format(f"{LOCKED_IDS} {BY_ID}")

FREE_KEYS = _FREE.format(f"{_LOCKED_NAMES} {_BY_KEY}")

HELD = f"SELECT message.id, lease_token FROM {IDS} {BY_ID}"

KEYS = f"SELECT message.id, kind, `key`, priority FROM {IDS} {BY_ID}"

_LOCK = """
SELECT id, priority, lease_token FROM delayedq_message FORCE INDEX (delayedq_key) WHERE {which} FOR UPDATE
"""

LOCK_KEY = _LOCK.format(which="kind = %(kind)s AND `key` = %(key)s")

# Those of a bare queue, by the index in which none of them ever moves: in the due index, one that gets another time or
# priority while this waits for a lock would be missed.
LOCK_QUEUE = _LOCK.format(which="kind = %(queue)s AND queue = %(queue)s")

LOCK_KEY_OF_QUEUE = _LOCK.format(which="kind = %(queue)s AND queue = %(queue)s AND `key` = %(key)s")

# Settling -----------------------------------------------------------------------------------------------------------
HISTORY = f"INSERT INTO delayedq_finishedmessage ({listed(columns.HISTORY, key=KEY)})"

_RECORD = history(
    id="message.id",
    finished_at=f"{NOW} - INTERVAL given.finished MICROSECOND",
    started_at=f"{NOW} - INTERVAL given.started MICROSECOND",
    attempts="attempt - (given.started IS NULL)",
    outcome="given.outcome",
    key=KEY,
    result="given.result",
    errors="coalesce(given.errors, message.errors)",
    error="given.error",
    fingerprint="given.fingerprint",
)

RECORD = f"""
{HISTORY}
SELECT {_RECORD}
FROM JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', outcome VARCHAR(10) PATH '$[1]', started BIGINT PATH '$[2]', finished BIGINT PATH '$[3]',
    result {LONGTEXT} PATH '$[4]', errors {LONGTEXT} PATH '$[5]', error {LONGTEXT} PATH '$[6]',
    fingerprint BIGINT PATH '$[7]'
)) AS given
{BY_ID}
"""

DELETE = f"DELETE message FROM {IDS} {BY_ID}"

GIVE_BACK = f"""
UPDATE JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', refund SMALLINT PATH '$[1]', until DATETIME(6) PATH '$[2]', delay BIGINT PATH '$[3]',
    errors {LONGTEXT} PATH '$[4]', metadata {LONGTEXT} PATH '$[5]'
)) AS given
{BY_ID}
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = attempt - given.refund,
    scheduled_at = coalesce(given.until, {NOW} + INTERVAL given.delay MICROSECOND, scheduled_at),
    message.errors = coalesce(given.errors, message.errors),
    message.metadata = coalesce(given.metadata, message.metadata)
"""

REARM = f"UPDATE {IDS} {BY_ID} SET lease_token = NULL, leased_until = NULL, leased_by = NULL"

# An attempt whose message was replaced takes an id that no message ever has: that of a row which is deleted before the
# commit. Its kind sorts after all others, where no lock on the gap beside another key is in its way.
_UNSEEN = "('', '\U0010ffff', 0, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 0)"

_DRAW_IDS = """
INSERT INTO delayedq_message (
    queue, kind, priority, max_attempts, payload, scheduled_at, scheduled_at_initially, created_at, attempt, generation
)
VALUES
"""

DRAWN_IDS = "SELECT id FROM delayedq_message WHERE queue = '' ORDER BY id"


def draw_ids(count: int) -> str:
    return _DRAW_IDS + ", ".join([_UNSEEN] * count)


_AGO = f"{_DUE} - INTERVAL %s MICROSECOND"

_GIVEN = {"finished_at": _AGO, "started_at": _AGO, "outcome": "'superseded'", **columns.NO_RESULT}

_SUPERSEDED = f"({listed(columns.HISTORY, **dict.fromkeys(columns.HISTORY, '%s') | _GIVEN)})"


def record_superseded(rows: int) -> str:
    return f"{HISTORY} VALUES " + ", ".join([_SUPERSEDED] * rows)


# Taking back --------------------------------------------------------------------------------------------------------
RECORD_CANCELLED = f"""
{HISTORY}
SELECT {history(id="message.id", finished_at=NOW, key=KEY, errors="coalesce(%(errors)s, errors)")}
FROM {IDS} {BY_ID}
"""

# Holding ------------------------------------------------------------------------------------------------------------
RENEW = f"""
UPDATE {IDS} {BY_ID}
SET leased_until = greatest(leased_until, {NOW} + INTERVAL %(lease)s MICROSECOND)
"""

_PAIRS = "JSON_TABLE(%(given)s, '$[*]' COLUMNS (id BIGINT PATH '$[0]', token BIGINT PATH '$[1]')) AS given"

# The seconds that are left of these leases, also where rows are locked.
LEFT = f"""
SELECT message.id, message.lease_token,
    TIMESTAMPDIFF(MICROSECOND, {NOW}, greatest(message.leased_until, coalesce(renewal.leased_until, {NOW})))
FROM {IDS} {BY_ID}
LEFT JOIN delayedq_lockedrenewal AS renewal
    ON renewal.message_id = message.id AND renewal.lease_token = message.lease_token
WHERE message.lease_token IS NOT NULL
"""

# Rows come in the order of their ids: two keepers can't deadlock. Who lost the message meanwhile writes nothing: that
# would overwrite the renewal of its next holder.
KEEP_LOCKED = f"""
INSERT INTO delayedq_lockedrenewal (message_id, lease_token, leased_until)
SELECT id, token, {NOW} + INTERVAL lease MICROSECOND
FROM JSON_TABLE(%(given)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', token BIGINT PATH '$[1]', lease BIGINT PATH '$[2]'
)) AS given
WHERE token = (SELECT lease_token FROM delayedq_message FORCE INDEX (PRIMARY) WHERE delayedq_message.id = given.id)
ON DUPLICATE KEY UPDATE
    leased_until = greatest(IF(lease_token = VALUES(lease_token), leased_until, {NOW}), VALUES(leased_until)),
    lease_token = VALUES(lease_token)
"""

FORGET_LOCKED = f"""
DELETE renewal FROM {_PAIRS}
STRAIGHT_JOIN delayedq_lockedrenewal AS renewal FORCE INDEX (PRIMARY)
    ON renewal.message_id = given.id AND renewal.lease_token = given.token
"""

FORGET_EXPIRED = f"DELETE FROM delayedq_lockedrenewal WHERE leased_until <= {NOW}"

# A message that was replaced meanwhile has no attempt to give back.
RELEASE = f"""
UPDATE {IDS} {BY_ID}
SET lease_token = NULL, leased_until = NULL, leased_by = NULL, attempt = greatest(attempt - 1, 0)
"""

# History ------------------------------------------------------------------------------------------------------------
_HISTORY_BY_ID = (
    f"{IDS} STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id"
)

FINISHED = f"SELECT finished.id FROM {_HISTORY_BY_ID}"

#: What others need stays (`retention`).
UNNEEDED = " AND finished_at >= coalesce(({needed}), TIMESTAMP '1000-01-01 00:00:00')"

PRUNABLE = f"""
SELECT id FROM delayedq_finishedmessage
WHERE finished_at < {NOW} - INTERVAL %(older_than)s MICROSECOND AND outcome <> 'failed'{{unneeded}}
ORDER BY finished_at LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
"""

PRUNE = f"DELETE finished FROM {_HISTORY_BY_ID}"

# Migrations ---------------------------------------------------------------------------------------------------------
#: The lock of whoever migrates this database; all databases of a server share the names. Its session is idle meanwhile.
_LOCK_NAME = "CONCAT('delayedq.migrate.', LEFT(SHA2(DATABASE(), 256), 40))"
MIGRATION_LOCK = ("SET SESSION wait_timeout = 604800", f"SELECT GET_LOCK({_LOCK_NAME}, 0)")
RELEASE_MIGRATION_LOCK = f"SELECT RELEASE_LOCK({_LOCK_NAME})"

#: Claims wait behind a migration that waits for a table: so long, and the moment of the change itself.
LOCK_TIMEOUT_NOW = "SELECT @@SESSION.lock_wait_timeout"
SET_LOCK_TIMEOUT = "SET SESSION lock_wait_timeout = %(seconds)s"

# Workers ------------------------------------------------------------------------------------------------------------
HEARTBEAT = f"""
{registry.INSERT}
SELECT {registry.COLUMNS}, clock.moment - INTERVAL given.age * 1e6 MICROSECOND, clock.moment
FROM JSON_TABLE(%(workers)s, '$[*]' COLUMNS (
    name {VARCHAR} PATH '$.name', host {VARCHAR} PATH '$.host', pid INT PATH '$.pid', threads INT PATH '$.threads',
    queues {LONGTEXT} PATH '$.queues', excluded_queues {LONGTEXT} PATH '$.excluded_queues',
    lease DOUBLE PATH '$.lease', held INT PATH '$.held', running {LONGTEXT} PATH '$.running',
    problems {LONGTEXT} PATH '$.problems', age DOUBLE PATH '$.age'
)) AS given, (SELECT {NOW} AS moment) AS clock
ON DUPLICATE KEY UPDATE asked = IF(%(first)s AND VALUES(started_at) > seen_at, '', asked),
    {", ".join(f"{name} = VALUES({name})" for name in registry.RENEWED)}
"""

# How many connections there may be, and are.
MOST_CONNECTIONS = "SELECT @@max_connections, @@max_user_connections, SUBSTRING_INDEX(CURRENT_USER(), '@', 1)"

CONNECTIONS = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"

#: Of all users, if this one may see them; its own in any case.
SESSIONS = "SHOW PROCESSLIST"

#: Those of the same user in the same database.
OTHER_SESSIONS = """
SELECT id FROM information_schema.processlist
WHERE user = substring_index(current_user(), '@', 1) AND db = database() AND id <> connection_id()
"""

END_SESSION = "KILL %(session)s"


# The statements of an operator's edits on MariaDB and MySQL. See `sql`.


# Those that no claim holds, locked; as they are seen now, and whether they have a lease in a channel.
_SEEN = f"""
SELECT message.id, generation, attempt, scheduled_at, queue, {given_priority()},
    message.lease_token IS NOT NULL AND message.priority < {BOUNDARY}
FROM {LOCKED_IDS} {BY_ID}
WHERE {{which}}
FOR UPDATE SKIP LOCKED
"""

SEEN_WAITING = _SEEN.format(which=unleased("message"))

# Those that a claim holds.
SEEN_HELD = _SEEN.format(which=f"NOT {unleased('message')}")

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


# The statements of bare queues on MariaDB and MySQL: what is claimed by conditions, and pages. See `sql`.


PAGE = bare_sql.page(BY_CHOICE, unleased("message"), key=KEY, index="FORCE INDEX (delayedq_due)")

_WITHIN = f"{KEY} >= %(first)s AND {KEY} <= %(last)s"

_KEY_INDEX = "FORCE INDEX (delayedq_key)"

KEYS_OF_QUEUE = bare_sql.keys(_WITHIN, index=_KEY_INDEX)

_READABLE = "REPLACE(REPLACE(payload, %(backslash)s, %(controls)s), %(escape)s, %(letters)s)"

_FOUND = f"JSON_EXTRACT({_READABLE}, %(path_{{number}})s)"

_TEXT = f"CONCAT({_FOUND}, '')"

# As texts: MariaDB compares two JSON strings as if one of them had no quotes.
_IN = f"coalesce({_TEXT} COLLATE utf8mb4_bin IN ({{values}}), FALSE)"

_VALUE = "CONCAT(JSON_EXTRACT(%(value_{number}_{place})s, '$'), '') COLLATE utf8mb4_bin"

# Ints exactly; else as floats, and what is beyond those as the largest of them. (To MySQL a large int is a DOUBLE.)
_RANGE = f"""coalesce(CASE
    WHEN %(exact_{{number}})s AND JSON_TYPE({_FOUND}) IN ('INTEGER', 'UNSIGNED INTEGER')
        THEN CAST({_TEXT} AS DECIMAL(65)) {{sign}} CAST(%(bound_{{number}})s AS DECIMAL(65))
    WHEN JSON_TYPE({_FOUND}) IN ('INTEGER', 'UNSIGNED INTEGER', 'DOUBLE', 'DECIMAL')
        THEN CAST({_TEXT} AS DOUBLE) {{sign}} CAST(%(bound_{{number}})s AS DOUBLE)
    ELSE FALSE
END, FALSE)"""

SIGNS = {Lookup.GT: ">", Lookup.GTE: ">=", Lookup.LT: "<", Lookup.LTE: "<="}

_PLACE = f"""
{{place}} = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= {NOW}
"""


def claimable_matching(matching: Matching) -> str:
    """Along the due index, in its order: a row is locked if it is claimed, and no other."""
    return CLAIMABLE_WHERE.format(index="delayedq_due", which=_which(matching, "queue"), order=IN_ORDER)


def few_matching(matching: Matching) -> str:
    """The ids of what can be claimed of a range of keys, in order, and nothing is locked: a sort would lock all."""
    which = f"{_which(matching, 'kind')} AND {unleased('message')}"
    return f"SELECT id FROM delayedq_message AS message {_KEY_INDEX} WHERE {which} {IN_ORDER}"


def claimable_few(matching: Matching) -> str:
    """Those of these ids that still can be claimed."""
    which = f"id IN %(ids)s AND {_which(matching, 'queue')}"
    return CLAIMABLE_WHERE.format(index="PRIMARY", which=which, order=IN_ORDER)


def _which(matching: Matching, place: str) -> str:
    which = [_PLACE.format(place=place)]
    if matching.keys is not None:
        which.append(_WITHIN)
    if tests := " AND ".join(starmap(_test, enumerate(matching.conditions))):
        which.append(f"CASE WHEN JSON_VALID({_READABLE}) THEN {tests} ELSE FALSE END")
    return " AND ".join(which)


def _test(number: int, condition: Condition) -> str:
    if condition.lookup is not Lookup.IN:
        return _RANGE.format(number=number, sign=SIGNS[condition.lookup])
    values = ", ".join(_VALUE.format(number=number, place=place) for place in range(len(condition.values)))
    return _IN.format(number=number, values=values or "NULL")
