"""A whole claim from the channels of a group in one statement, where their limit is a concurrency and nothing else.

It is what `channels.claims` does with `look`, `deal` and START, in the same words: what is in turn, what runs, to whom
the places go, what is leased, and how each channel is left. With 1,000 channels and batches of 400, bringing 220
channels to the worker and back, and dealing there, took a third of the time of its thread for the database.
"""

from __future__ import annotations

from functools import cache

from delayedq.store.channels.visits import FIRST_SECONDS, LEAST_SECONDS, LOCKED
from delayedq.store.postgresql.channels_sql import AT_ONCE, FIRST, RUNNING, WAITING, leased
from delayedq.store.postgresql.sql import NOW

_LOCKED = f"{NOW} + interval '{LOCKED.total_seconds()} seconds'"
_STEP = f"greatest(CASE WHEN seconds > 0 THEN seconds ELSE {FIRST_SECONDS} END, {LEAST_SECONDS}) / %(weight)s::float8"
_ENDS_AT = f"greatest(coalesce(until, {NOW} + %(lease)s), {_LOCKED})"

# The planner takes an array for ten rows, whatever it thinks of the table: so it joins by hashes what follows.
_DEAL = f"""
WITH visit AS MATERIALIZED (
    SELECT channel.id, name, turn, weight, {_STEP} AS step, {{at_once}} AS at_once, ordinality AS rank, until, ended,
        room.places, first.ids
    FROM unnest(ARRAY({{ready}})) WITH ORDINALITY AS channel
    CROSS JOIN LATERAL {RUNNING} AS running (number, until, ended)
    CROSS JOIN LATERAL (SELECT greatest(%(concurrency)s - running.number, 0)) AS room (places)
    CROSS JOIN LATERAL (SELECT ARRAY({FIRST} LIMIT room.places + 1) OFFSET 0) AS first (ids)
),
-- Of places as if something ran, which does not, it only tells.
visits AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE ended <> '{{{{}}}}') = 0 AS is_sure,
        coalesce(sum(at_once), 0) >= %(most)s AS has_more,
        count(*) FILTER (WHERE places = 0) > 0 AS has_full
    FROM visit
),
-- Each channel gets `at_once` places at a time, as long as it has the lowest turn.
head AS MATERIALIZED (
    SELECT visit.id, name, turn, weight, step, rank, until, places, cardinality(ids) AS waiting, message, number,
        message > 0 AND row_number() OVER (
            ORDER BY turn + (number - 1) / at_once * at_once * step, rank, number
        ) <= %(room)s AS is_chosen
    FROM visits JOIN visit ON visits.is_sure
    LEFT JOIN LATERAL unnest(ids) WITH ORDINALITY AS one (message, number) ON number <= places
),
claimed AS ({leased("SELECT message FROM head WHERE is_chosen")}),
taken AS (
    UPDATE delayedq_channelmessage AS place SET lease_token = %(token)s
    FROM claimed WHERE place.message_id = claimed.id AND place.message_id = ANY(ARRAY(SELECT id FROM claimed))
),
served AS (
    SELECT head.id, turn, weight, step, until, places, waiting, count(claimed.id) AS started,
        count(*) FILTER (WHERE is_chosen) AS wanted
    FROM head LEFT JOIN claimed ON claimed.id = message
    GROUP BY head.id, turn, weight, step, until, places, waiting
),
-- NULL: it stays in turn; or, if nothing waits in it, it is not needed any more.
state AS MATERIALIZED (
    SELECT id, turn + started * step AS turn, weight, started, waiting <= started AS is_quiet, CASE
        WHEN waiting <= started THEN least(
            (SELECT min(due_at) {WAITING.format("served")} AND due_at > {NOW}),
            CASE WHEN started > 0 OR until IS NOT NULL THEN {_ENDS_AT} END
        )
        WHEN started < wanted THEN {_LOCKED}
        WHEN started < places OR started > 0 AND has_more AND NOT has_full THEN NULL
        ELSE {_ENDS_AT}
    END AS rests_until
    FROM served CROSS JOIN visits
),
kept AS (
    UPDATE delayedq_channel AS channel SET
        is_ready = rests_until IS NULL, ready_at = coalesce(rests_until, channel.ready_at), turn = state.turn,
        weight = %(weight)s
    FROM state
    WHERE channel.id = ANY(ARRAY(
            SELECT id FROM state
            WHERE rests_until IS NOT NULL OR NOT is_quiet AND (started > 0 OR weight <> %(weight)s)
        ))
        AND channel.id = state.id
),
gone AS (
    DELETE FROM delayedq_channel
    WHERE id = ANY(ARRAY(SELECT id FROM state WHERE rests_until IS NULL AND is_quiet))
),
turned AS (
    UPDATE delayedq_channelgroup AS known SET turn = latest.turn
    FROM (SELECT max(turn) AS turn FROM head WHERE is_chosen) AS latest
    WHERE id = %(group)s AND known.turn < latest.turn
)
SELECT
    ARRAY(SELECT unnest(ended) FROM visit),
    has_more OR (SELECT count(*) FROM claimed) >= %(room)s
        OR EXISTS (SELECT FROM state WHERE rests_until IS NULL AND NOT is_quiet),
    head.name, head.message, claimed.*
FROM visits LEFT JOIN head ON is_chosen LEFT JOIN claimed ON claimed.id = message
ORDER BY rank, number
"""

_READY = "FROM delayedq_channel AS channel WHERE group_id = %(group)s AND is_ready = true"
_FIRST_IN_TURN = f"SELECT channel {_READY} ORDER BY turn, id LIMIT %(most)s"
_PAIRED = f"""
    SELECT channel FROM (
        SELECT channel, turn, id, sum({AT_ONCE}) OVER (ORDER BY turn, id ROWS UNBOUNDED PRECEDING) - {AT_ONCE} AS taken
        {_READY} ORDER BY turn, id LIMIT %(most)s
    ) AS following WHERE taken < %(most)s ORDER BY turn, id
"""


@cache
def deal(*, in_pairs: bool) -> str:
    """in_pairs: channels of short messages get two places at a time, as in `look`."""
    return _DEAL.format(ready=_PAIRED if in_pairs else _FIRST_IN_TURN, at_once=AT_ONCE if in_pairs else "1")
