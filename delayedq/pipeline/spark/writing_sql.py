"""The statements of the writer, by engine.

What the attempts at the partitions of a load stage carries their tokens. One transaction turns what the winners staged
into messages; a message with the key of a live one is left out. Never INSERT IGNORE: it cuts texts.
"""

from __future__ import annotations

NOW = {"postgresql": "statement_timestamp()", "mysql": "UTC_TIMESTAMP(6)", "sqlite": "%(now)s"}
NOTIFY = "NOTIFY delayedq"
#: MySQL would lock gaps between the staged rows.
MYSQL_BEGIN = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN")

_WON = {
    # An array leaves the rows in their order; a join would not.
    "postgresql": "attempt = ANY(ARRAY(SELECT value::bigint FROM json_array_elements_text(%(tokens)s::json)))",
    "mysql": "attempt IN (SELECT token FROM JSON_TABLE(%(tokens)s, '$[*]' COLUMNS (token BIGINT PATH '$')) AS given)",
    "sqlite": "attempt IN (SELECT value FROM json_each(%(tokens)s))",
}

# One row per load ---------------------------------------------------------------------------------------------------

LOADS = "delayedq_pipeline_load"
_PLAN = """
INSERT INTO {loads} (load_id, state, source, started_at)
VALUES (%(load_id)s, 'staging', %(source)s, {now})
"""
_ON_CONFLICT = """
ON CONFLICT (load_id) DO UPDATE SET started_at = excluded.started_at, state = 'staging'
WHERE load.state <> 'loaded'
"""
PLAN = {
    vendor: _PLAN.format(loads=f"{LOADS} AS load", now=now) + _ON_CONFLICT
    for vendor, now in NOW.items()
    if vendor != "mysql"
} | {
    "mysql": _PLAN.format(loads=LOADS, now=NOW["mysql"])
    + """
ON DUPLICATE KEY UPDATE
    started_at = IF(state = 'loaded', started_at, VALUES(started_at)), state = IF(state = 'loaded', state, 'staging')
"""
}
STATE = f"SELECT state FROM {LOADS} WHERE load_id = %(load_id)s"
LOCK = {"postgresql": f"{STATE} FOR UPDATE", "mysql": f"{STATE} FOR UPDATE", "sqlite": STATE}
LOADED = {
    vendor: f"""
UPDATE {LOADS} SET state = 'loaded', finished_at = {now},
    row_count = %(row_count)s, inserted = %(inserted)s, duplicates = %(duplicates)s
WHERE load_id = %(load_id)s
"""
    for vendor, now in NOW.items()
}
ABORTED = {
    vendor: f"""
UPDATE {LOADS} SET state = 'aborted', finished_at = {now} WHERE load_id = %(load_id)s AND state = 'staging'
"""
    for vendor, now in NOW.items()
}

# What is staged -------------------------------------------------------------------------------------------------------

STAGING = "delayedq_pipeline_loadstaging"
_KEY = {"postgresql": "key", "mysql": "`key`", "sqlite": "key"}
# PostgreSQL's comes as Arrow.
STAGE = {
    vendor: f"""
INSERT INTO {STAGING} (
    queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata, scheduled_at, load_id, partition_id, attempt
) VALUES (
    %(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s, %(scheduled_at)s,
    %(load_id)s, %(partition_id)s, %(attempt)s
)
"""
    for vendor in ("mysql", "sqlite")
}
STAGED = {vendor: f"SELECT count(*) FROM {STAGING} WHERE {won}" for vendor, won in _WON.items()}
UNSTAGE = {vendor: f"DELETE FROM {STAGING} WHERE {won}" for vendor, won in _WON.items()}
UNSTAGE_LOAD = f"DELETE FROM {STAGING} WHERE load_id = %(load_id)s"

# Left by drivers that were killed. A load takes less than a week; if not, it finds that its rows are gone, and fails.
_WEEK = {
    "postgresql": "statement_timestamp() - interval '7 days'",
    "mysql": "UTC_TIMESTAMP(6) - INTERVAL 7 DAY",
    "sqlite": "datetime(%(now)s, '-7 days')",
}
SWEEP = {
    vendor: f"DELETE FROM {STAGING} WHERE load_id IN (SELECT load_id FROM {LOADS} WHERE started_at < {week})"
    for vendor, week in _WEEK.items()
}

# Messages -------------------------------------------------------------------------------------------------------------

_KEEP = {
    "postgresql": "ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING",
    "mysql": "ON DUPLICATE KEY UPDATE delayedq_message.id = delayedq_message.id",
    "sqlite": "ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING",
}
_OFFER = {
    vendor: f"""
INSERT INTO delayedq_message (
    queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata,
    scheduled_at, scheduled_at_initially, created_at, attempt, generation
)
SELECT queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata,
    coalesce(scheduled_at, {now}), coalesce(scheduled_at, {now}), {now}, 0, 0
FROM {STAGING} WHERE {_WON[vendor]}{{among}}
{_KEEP[vendor]}
"""
    for vendor, now in NOW.items()
}
OFFER = {vendor: statement.format(among="") for vendor, statement in _OFFER.items()}

# Only keys that no load has offered before with the option `once`. The unique key makes a second load that commits at
# the same time wait for the first, and then finds what that offered.
REPLAYED = "delayedq_pipeline_replayedmessage"
_SKIP = {
    "postgresql": "ON CONFLICT (key) DO NOTHING",
    "mysql": f"ON DUPLICATE KEY UPDATE {REPLAYED}.load_id = {REPLAYED}.load_id",
    "sqlite": "ON CONFLICT (key) DO NOTHING",
}
CLAIM_KEYS = {
    vendor: f"""
INSERT INTO {REPLAYED} ({key}, load_id)
SELECT {key}, load_id FROM {STAGING} WHERE {_WON[vendor]}
{_SKIP[vendor]}
"""
    for vendor, key in _KEY.items()
}
OFFER_ONCE = {
    vendor: statement.format(
        among=f" AND {_KEY[vendor]} IN (SELECT {_KEY[vendor]} FROM {REPLAYED} WHERE load_id = %(load_id)s)"
    )
    for vendor, statement in _OFFER.items()
}
