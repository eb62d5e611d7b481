"""How the stores walk along an index and look at a limited number of rows: one text for all of them.

The inner SELECT is one range of an index, with a limit of its own; whatever else is asked is asked of its rows. The
last row it may look at comes out in any case (`step = budget`) and tells how far the walk came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.store.edits import State

if TYPE_CHECKING:
    from collections.abc import Sequence

#: On MySQL a comparison of rows is no range of an index; to the others, a choice is none.
BY_ROWS = "({columns}) {sign} (%(at)s, %(id)s)"
BY_CHOICE = "({time} {sign}= %(at)s AND ({time} {sign} %(at)s OR id {sign} %(id)s))"

_WAITING = "(lease_token IS NULL OR leased_until <= {now})"
STATES = {
    State.DUE: f"scheduled_at <= {{now}} AND {_WAITING}",
    State.SCHEDULED: f"attempt = 0 AND scheduled_at > {{now}} AND {_WAITING}",
    State.RETRYING: f"attempt > 0 AND {_WAITING}",
    State.RUNNING: "lease_token IS NOT NULL AND leased_until > {now}",
    State.LOST: "lease_token IS NOT NULL AND leased_until <= {now}",
}

_ALONG = """
SELECT at, id, chosen, step FROM (
    SELECT {time} AS at, id, CASE WHEN {{chosen}} THEN 1 ELSE 0 END AS chosen,
        row_number() OVER (ORDER BY {time} {order}, id {order}) AS step
    FROM {table} AS walked
    WHERE {{bounds}}
    ORDER BY {time} {order}, id {order} LIMIT %(budget)s
) AS looked_at
WHERE chosen = 1 OR step = %(budget)s
ORDER BY at {order}, id {order} LIMIT %(limit)s
"""
LANE = _ALONG.format(time="scheduled_at", order="ASC", table="delayedq_message")
HISTORY = _ALONG.format(time="finished_at", order="DESC", table="delayedq_finishedmessage")

_LANE_BOUNDS = "queue = {queue} AND priority = {priority} AND scheduled_at <= %(until)s AND "


def lane(state: State | None, *, by_kind: bool, after: str, now: str, queue: str, priority: str) -> str:
    """A walk along a lane, whose queue and priority stand for columns or parameters."""
    asked = ["kind = %(kind)s"] if by_kind else []
    if state is not None:
        asked.append(STATES[state].format(now=now))
    position = after.format(columns="scheduled_at, id", time="scheduled_at", sign=">")
    bounds = _LANE_BOUNDS.format(queue=queue, priority=priority) + position
    return LANE.format(chosen=" AND ".join(asked) or "1 = 1", bounds=bounds)


#: What a walk through the history may be asked for. (To MySQL, `key` alone is a word of its own.)
ENDED = {name: f"walked.{name} = %({name})s" for name in ("outcome", "queue", "kind", "key")}


def history(wanted: Sequence[str], *, dead: bool, before: str) -> str:
    """A walk back through the history; that through the dead letters has an index of its own."""
    bounds = before.format(columns="finished_at, id", time="finished_at", sign="<") + " AND finished_at >= %(since)s"
    if dead:
        bounds += " AND outcome = 'failed'"
    return HISTORY.format(chosen=" AND ".join(ENDED[name] for name in wanted) or "1 = 1", bounds=bounds)


# On PostgreSQL: all lanes in one statement.
LANES = """
SELECT walked.at, walked.id, walked.chosen, walked.step, lane.place
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) WITH ORDINALITY AS lane (queue, priority, place)
CROSS JOIN LATERAL ({lane}) AS walked
"""
