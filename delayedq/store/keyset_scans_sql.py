"""Keyset scans: how an index is read in its order, a limited number of rows at a time. One text for all databases.

The inner SELECT is one range of an index, with a limit of its own; whatever else is asked is asked of its rows. The
last row it may read comes out in any case (`step = budget`) and tells how far the scan came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.dialect import Dialect
    from delayedq.store.operator import State

# Where a transaction has locked a row, its lease is renewed beside it.
_RENEWED = """EXISTS (
        SELECT 1 FROM delayedq_lockedrenewal AS renewal
        WHERE renewal.message_id = scanned.id AND renewal.lease_token = scanned.lease_token
            AND renewal.leased_until > %(now)s
    )"""
_HELD = f"lease_token IS NOT NULL AND (leased_until > %(now)s OR {_RENEWED})"
_RUN_OUT = f"lease_token IS NOT NULL AND leased_until <= %(now)s AND NOT {_RENEWED}"
_WAITING = f"(lease_token IS NULL OR {_RUN_OUT})"
#: By the value of `operator.State`.
STATES = {
    "due": f"scheduled_at <= %(now)s AND {_WAITING}",
    "scheduled": f"attempt = 0 AND scheduled_at > %(now)s AND {_WAITING}",
    "retrying": f"attempt > 0 AND {_WAITING}",
    "running": _HELD,
    "lost": _RUN_OUT,
    "paused": f"""scheduled_at <= %(now)s AND {_WAITING} AND (
        queue IN (SELECT queue FROM delayedq_pausedqueue) OR kind IN (SELECT kind FROM delayedq_pausedtask)
    )""",
}

_ALONG = """
SELECT at, id, chosen, step FROM (
    SELECT {time} AS at, id, CASE WHEN {{chosen}} THEN 1 ELSE 0 END AS chosen,
        row_number() OVER (ORDER BY {time} {order}, id {order}) AS step
    FROM {table} AS scanned
    WHERE {{bounds}}
    ORDER BY {time} {order}, id {order} LIMIT %(budget)s
) AS numbered
WHERE chosen = 1 OR step = %(budget)s
ORDER BY at {order}, id {order} LIMIT %(limit)s
"""
LANE = _ALONG.format(time="scheduled_at", order="ASC", table="delayedq_message")
HISTORY = _ALONG.format(time="finished_at", order="DESC", table="delayedq_finishedmessage")

_LANE_BOUNDS = "queue = {queue} AND priority = {priority} AND scheduled_at <= %(until)s AND "


#: What a keyset scan along a lane may be asked for; an argument as it is, and as JSON has it.
LIVE = {
    "kind": "kind = %(kind)s",
    "worker": "leased_by = %(worker)s",
    "argument": "({position}(payload, %(argument)s) > 0 OR {position}(payload, %(as_json)s) > 0)",
}


def lane(dialect: Dialect, state: State | None, wanted: Sequence[str], *, queue: str, priority: str) -> str:
    """A keyset scan along a lane, whose queue and priority stand for columns or parameters."""
    asked = [LIVE[name].format(position=dialect.position) for name in wanted]
    if state is not None:
        asked.append(STATES[state])
    position = dialect.after.format(columns="scheduled_at, id", time="scheduled_at", sign=">")
    bounds = _LANE_BOUNDS.format(queue=queue, priority=priority) + position
    return LANE.format(chosen=" AND ".join(asked) or "1 = 1", bounds=bounds)


#: What a keyset scan through the history may be asked for. (To MySQL, `key` alone is a word of its own.)
ENDED = {name: f"scanned.{name} = %({name})s" for name in ("outcome", "queue", "kind", "priority", "worker")} | {
    "key": "substr(scanned.key, 1, %(key_length)s) = %(key)s",
    "error": "{position}(lower(scanned.error), %(error)s) > 0",
}


def history(dialect: Dialect, wanted: Sequence[str], *, dead: bool, grouped: bool = False) -> str:
    """A keyset scan back through the history; dead letters, and those of one error group, have indexes of their own."""
    position = dialect.after.format(columns="finished_at, id", time="finished_at", sign="<")
    bounds = position + " AND finished_at >= %(since)s"
    if grouped:
        bounds += " AND fingerprint = %(fingerprint)s"
    elif dead:
        bounds += " AND outcome = 'failed'"
    chosen = " AND ".join(ENDED[name] for name in wanted).format(position=dialect.position)
    return HISTORY.format(chosen=chosen or "1 = 1", bounds=bounds)
