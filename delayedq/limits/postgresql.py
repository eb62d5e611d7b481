"""Messages with a channel on PostgreSQL.

Each way to the database takes the interpreter lock from a busy worker and gives it back: a claim reads all of its
channels in one statement, and writes in one. With 1,000 channels and batches of 512, a statement for each table and
each step took half of the time.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from delayedq.limits.channels import KEPT, MOST_NOTICES, MOST_RISING, SURROUNDINGS, Channels
from delayedq.limits.offers import told_of
from delayedq.limits.requests import AS_BEFORE, ChannelClaim, ChannelState, ChannelView, Dealt, Running
from delayedq.limits.room import FIRST_SECONDS, LEAST_SECONDS, LOCKED, MOST_VISITED, SHORT_SECONDS
from delayedq.limits.rules import HEAD
from delayedq.sql.priority import BOUNDARY, LIMITED
from delayedq.store.feature import concerned
from delayedq.store.postgresql.database import Given, numbers, of_finishes, of_lease, texts
from delayedq.store.postgresql.sql import CLAIMED, ENDED, LEASE, MESSAGE, NOW, expired, free
from delayedq.store.postgresql.store import ended_of, finishing, missing_of, settled_or_busy
from delayedq.store.protocol import Claimed, Finish, Settled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.limits.offers import ChannelAddress
    from delayedq.limits.requests import ChannelQuery, ChannelRequest, ClaimContext, Events, Notice, Start
    from delayedq.limits.rules import Limit
    from delayedq.store.postgresql.database import PostgreSQLDatabase
    from delayedq.store.protocol import Transition

# A number of its own among the advisory locks of the database. The moment is that at which the lock is there.
# For the rest of the transaction, indexes are read in their order, and what is dead in them is left out the next time:
# where the planner takes few channels to be in turn, it would read and sort them all. Before PostgreSQL 18, what is off
# has a cost beyond all others, for which each statement would be compiled: that takes longer than running it.
LOCK = f"""
SELECT CASE WHEN pg_try_advisory_xact_lock(4990113571238845) THEN {NOW} END,
    set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true)
"""

# What offers and settlements write ----------------------------------------------------------------------------------
_TOLD = "INSERT INTO delayedq_channelnotice (channel_id, group_id, queue, kind, name, at, ended, seconds)"

_NOTICES = """unnest(
    %(channels)s::bigint[], %(groups)s::bigint[], %(queues)s::text[], %(kinds)s::text[], %(names)s::text[],
    %(moments)s::timestamptz[], %(ended)s::int[], %(took)s::float8[]
)"""

_DROPPED = """
dropped AS (
    DELETE FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(SELECT unnest(%(ended_ids)s::bigint[])))
)
"""

TELL = f"""
WITH {_DROPPED},
told AS (
    {_TOLD}
    SELECT * FROM {_NOTICES}
)
SELECT 1
"""

LINE_UP = f"""
WITH channel (id, group_id, queue, kind, name) AS MATERIALIZED (
    SELECT * FROM unnest(
        %(channels)s::bigint[], %(groups)s::bigint[], %(queues)s::text[], %(kinds)s::text[], %(names)s::text[]
    )
),
placed AS (
    INSERT INTO delayedq_channelmessage (message_id, channel_id, group_id, urgency, due_at, lease_token)
    SELECT message.id, channel.id, channel.group_id, -message.priority - {LIMITED}, message.scheduled_at, 0
    FROM unnest(%(ids)s::bigint[], %(homes)s::bigint[]) AS lined (message_id, channel_id)
    JOIN channel ON channel.id = lined.channel_id
    JOIN delayedq_message AS message ON message.id = lined.message_id
    WHERE message.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND message.priority < {BOUNDARY}
    ON CONFLICT (message_id) DO UPDATE SET
        channel_id = excluded.channel_id, group_id = excluded.group_id, urgency = excluded.urgency,
        due_at = excluded.due_at
    RETURNING channel_id, due_at
),
told AS (
    {_TOLD}
    SELECT channel.id, channel.group_id, channel.queue, channel.kind, channel.name, min(placed.due_at), 0, 0
    FROM placed JOIN channel ON channel.id = placed.channel_id
    GROUP BY 1, 2, 3, 4, 5
)
SELECT 1
"""

# What a claim writes first ------------------------------------------------------------------------------------------
_COST = f"greatest(CASE WHEN known.seconds > 0 THEN known.seconds ELSE {FIRST_SECONDS} END, {LEAST_SECONDS})"

_KEPT = f"CASE WHEN known.seconds > 0 THEN power({KEPT}::float8, least(heard.ended, 1000)) ELSE 0 END"

_RISEN = """
SELECT group_id FROM heard UNION ALL SELECT group_id FROM changed UNION ALL SELECT group_id FROM rested UNION ALL
"""

# It is in turn, and its messages took what they were charged with: most rows need not be written.
_AS_CHARGED = f"""(
    known.is_ready AND (heard.ended = 0 OR known.seconds > 0) AND known.seconds <= {LEAST_SECONDS}
    AND heard.seconds <= heard.ended * {LEAST_SECONDS} AND heard.uncharged = 0
)"""

# `Channels.hear` in one statement: it says what the expressions mean. Then it reads `channels.SURROUNDINGS`, which
# does not see what this statement writes.
HEAR = f"""
WITH {_DROPPED},
removed AS (
    DELETE FROM delayedq_channelnotice
    WHERE id = ANY(ARRAY(SELECT id FROM delayedq_channelnotice ORDER BY id LIMIT {MOST_NOTICES}))
    RETURNING channel_id, group_id, queue, kind, name, at, ended, seconds
),
heard AS MATERIALIZED (
    SELECT channel_id, min(removed.group_id) AS group_id, min(name) AS name, min(at) AS at,
        sum(ended)::float8 AS ended, sum(seconds) AS seconds, sum(uncharged)::float8 AS uncharged
    FROM (
        SELECT channel_id, group_id, name, at, ended, seconds, 0 AS uncharged FROM removed
        UNION ALL
        SELECT channel_id, NULL, NULL, {NOW}, ended, seconds, uncharged
        FROM unnest(%(channels)s::bigint[], %(ended)s::int[], %(took)s::float8[], %(uncharged)s::int[])
            AS given (channel_id, ended, seconds, uncharged)
    ) AS removed
    GROUP BY channel_id
),
grouped AS (
    INSERT INTO delayedq_channelgroup (id, queue, kind, turn)
    SELECT DISTINCT group_id, queue, kind, 0::float8 FROM removed
    WHERE NOT EXISTS (SELECT 1 FROM delayedq_channelgroup AS one WHERE one.id = removed.group_id)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, queue, kind, turn
),
changed AS (
    UPDATE delayedq_channel AS known SET
        is_ready = known.is_ready OR least(heard.at, known.ready_at) <= {NOW},
        ready_at = least(heard.at, known.ready_at),
        turn = CASE WHEN known.is_ready THEN known.turn ELSE greatest(known.turn, its.turn) END
            + (
                greatest(heard.seconds, heard.ended * {LEAST_SECONDS}) - (heard.ended - heard.uncharged) * {_COST}
            ) / known.weight,
        seconds = CASE WHEN heard.ended > 0
            THEN known.seconds * {_KEPT} + heard.seconds / heard.ended * (1 - {_KEPT}) ELSE known.seconds END
    FROM heard, delayedq_channelgroup AS its
    WHERE known.id = ANY(ARRAY(SELECT channel_id FROM heard)) AND known.id = heard.channel_id
        AND its.id = known.group_id AND NOT {_AS_CHARGED}
    RETURNING known.id, known.group_id
),
created AS (
    INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds, weight)
    SELECT channel_id, group_id, name, at <= {NOW}, at, coalesce(its.turn, 0),
        CASE WHEN ended > 0 THEN seconds / ended ELSE 0 END, 1
    FROM heard LEFT JOIN delayedq_channelgroup AS its ON its.id = heard.group_id
    WHERE heard.group_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM delayedq_channel AS known WHERE known.id = heard.channel_id)
),
rested AS (
    UPDATE delayedq_channel SET is_ready = true
    WHERE id = ANY(ARRAY(
        SELECT id FROM delayedq_channel WHERE is_ready = false AND ready_at <= {NOW}
        ORDER BY ready_at LIMIT {MOST_RISING}
    )) AND id NOT IN (SELECT channel_id FROM heard)
    RETURNING group_id
)
{SURROUNDINGS.format(ready=_RISEN)}
UNION ALL SELECT 'ready', id, queue, kind, turn, NULL FROM grouped
UNION ALL SELECT 'named', id, NULL, NULL, NULL, NULL
FROM (SELECT id, queue, kind FROM delayedq_channelgroup UNION ALL SELECT id, queue, kind FROM grouped) AS one
WHERE EXISTS (SELECT FROM delayedq_limitstate WHERE scope IN (one.queue, one.kind) AND channel > '')
UNION ALL SELECT 'cut', NULL, NULL, NULL, NULL, NULL WHERE (SELECT count(*) FROM removed) = {MOST_NOTICES}
"""

# What it reads ------------------------------------------------------------------------------------------------------
WAITING = "FROM delayedq_channelmessage WHERE channel_id = {}.id AND lease_token = 0"

_WAITING = WAITING.format("channel")

FIRST = f"SELECT message_id {_WAITING} AND due_at <= {NOW} ORDER BY urgency, due_at, message_id"

HEADS = f"""
SELECT channel.id, ARRAY({FIRST} LIMIT channel.most)
FROM unnest(%(channels)s::bigint[], %(most)s::int[]) AS channel (id, most)
"""

# What a lease says may be over, and renewed beside its row (see `expired`): then it ends at any moment.
RUNNING = f"""(
    SELECT count(*) FILTER (WHERE is_held AND NOT runs_elsewhere),
        min(greatest(leased_until, held_until, {NOW})) FILTER (WHERE is_held),
        coalesce(array_agg(message_id) FILTER (WHERE NOT is_held), '{{{{}}}}')
    FROM (
        SELECT place.message_id, message.leased_until, place.held_until,
            place.message_id > 0 AND place.held_until IS NOT NULL AS runs_elsewhere,
            message.id IS NOT NULL AND NOT (%(expired)s AND {expired("message")})
                OR place.message_id < 0 AND place.held_until IS NOT NULL
                AND (place.held_until > {NOW} OR NOT %(expired)s) AS is_held
        FROM delayedq_channelmessage AS place
        LEFT JOIN delayedq_message AS message
            ON message.id = {MESSAGE} AND message.lease_token = place.lease_token
        WHERE place.channel_id = channel.id AND place.lease_token > 0
        OFFSET 0 -- so the lease is judged once
    ) AS place
)"""

_LOOK = f"""
SELECT channel.id, channel.name, channel.is_ready, channel.ready_at, channel.turn, channel.seconds, channel.tokens,
    channel.tokens_at, channel.weight, running.number, running.until, channel.share, first.ids,
    CASE WHEN cardinality(first.ids) < channel.share THEN (SELECT min(due_at) {_WAITING} AND due_at > {NOW}) END,
    running.ended,
    CASE WHEN channel.name <> '' AND EXISTS (
        SELECT 1 FROM delayedq_limitstate WHERE scope > '' AND channel > ''
    ) THEN (
        SELECT string_agg(definition, chr(10) ORDER BY scope = %(kind)s)
        FROM delayedq_limitstate WHERE scope IN (%(kind)s, %(queue)s) AND channel = channel.name
    ) END{{blocked}}
FROM (
    SELECT one.*, ((%(room)s + count(*) OVER () - 1) / count(*) OVER ())::int + 1 AS share FROM (
        {{ready}}
    ) AS one
) AS channel
CROSS JOIN LATERAL (SELECT ARRAY({FIRST} LIMIT channel.share) OFFSET 0) AS first (ids)
CROSS JOIN LATERAL {RUNNING} AS running (number, until, ended)
ORDER BY channel.turn, channel.id
"""

_READY = "FROM delayedq_channel WHERE group_id = %(group)s AND is_ready = true"

_FIRST_IN_TURN = f"(SELECT * {_READY} ORDER BY turn, id LIMIT %(most)s)"

# Found by their ids, whatever the order says: the others may come after any number of channels.
_OTHERS = f"SELECT * {_READY} AND id = ANY(ARRAY(SELECT unnest(%(others)s::bigint[]))) OFFSET 0"

_WITH_OTHERS = f"{_FIRST_IN_TURN} UNION (SELECT * FROM ({_OTHERS}) AS other ORDER BY turn, id LIMIT {MOST_VISITED})"

# `room.at_once`: as many as take `most` places.
AT_ONCE = f"CASE WHEN seconds > 0 AND seconds <= {SHORT_SECONDS} THEN 2 ELSE 1 END"

_PAIRED = f"""
    SELECT * FROM (
        SELECT *, sum({AT_ONCE}) OVER (ORDER BY turn, id ROWS UNBOUNDED PRECEDING) - {AT_ONCE} AS taken
        {_READY} ORDER BY turn, id LIMIT %(most)s
    ) AS following WHERE taken < %(most)s
"""

_BLOCKED = f""", (
    SELECT CASE WHEN min(due_at) > {NOW} THEN min(due_at) END {_WAITING} AND urgency = {HEAD}
        AND EXISTS (SELECT FROM delayedq_message AS message WHERE message.id = message_id)
)"""


@cache
def look(*, is_strict: bool, with_others: bool, in_pairs: bool) -> str:
    """The channels in turn, in which those that are to be tried again block others or not; with named ones, or not.

    in_pairs: where messages are short, half as many; not with named ones.
    """
    ready = _WITH_OTHERS if with_others else _PAIRED if in_pairs else _FIRST_IN_TURN
    return _LOOK.format(ready=ready, blocked=_BLOCKED if is_strict else ", NULL::timestamptz")


# What it writes -----------------------------------------------------------------------------------------------------
def leased(ids: str) -> str:
    """Those of these messages, by the ids that this query gives, that wait in limited lanes and are not locked."""
    return f"""
{LEASE}
WHERE message.id = {free(ids=ids)} AND message.priority < {BOUNDARY} AND message.scheduled_at <= {NOW}
    AND (message.lease_token IS NULL OR %(expired)s AND {expired("message")})
RETURNING {CLAIMED}
"""


# Those that were `claimed` have their places.
_TAKEN = """
UPDATE delayedq_channelmessage AS place SET lease_token = %(token)s
FROM claimed WHERE place.message_id = claimed.id AND place.message_id = ANY(ARRAY(SELECT id FROM claimed))
"""

CLAIM_IDS = leased("SELECT unnest(%(ids)s::bigint[])")

_LEFT = """
gone AS (
    DELETE FROM delayedq_channel WHERE id = ANY(ARRAY(SELECT unnest(%(gone)s::bigint[])))
),
turned AS (
    UPDATE delayedq_channelgroup SET turn = %(turn)s WHERE id = %(group)s AND turn <> %(turn)s
)
"""

_STATES = """
%(channels)s::bigint[], %(ready)s::boolean[], %(ready_at)s::timestamptz[], %(turns)s::float8[],
%(tokens)s::float8[], %(tokens_at)s::timestamptz[], %(weights)s::float8[]
"""

# A channel that was deleted is inserted again where less was claimed than it was deleted for.
KEEP = f"""
WITH kept AS (
    INSERT INTO delayedq_channel (id, is_ready, ready_at, turn, tokens, tokens_at, weight, name, seconds, group_id)
    SELECT given.*, %(group)s FROM unnest({_STATES}, %(names)s::text[], %(seconds)s::float8[]) AS given
    ON CONFLICT (id) DO UPDATE SET
        is_ready = excluded.is_ready, ready_at = excluded.ready_at, turn = excluded.turn, tokens = excluded.tokens,
        tokens_at = excluded.tokens_at, weight = excluded.weight
),
{_LEFT}
SELECT 1
"""

START = f"""
WITH claimed AS ({CLAIM_IDS}),
taken AS ({_TAKEN}),
kept AS (
    UPDATE delayedq_channel AS channel SET
        is_ready = given.is_ready, ready_at = coalesce(given.ready_at, channel.ready_at), turn = given.turn,
        tokens = given.tokens, tokens_at = given.tokens_at, weight = given.weight
    FROM unnest({_STATES}) AS given (id, is_ready, ready_at, turn, tokens, tokens_at, weight)
    WHERE channel.id = ANY(ARRAY(SELECT unnest(%(channels)s::bigint[]))) AND channel.id = given.id
),
{_LEFT}
SELECT * FROM claimed
"""


_NOTHING_SET = """NOT EXISTS (
    SELECT FROM delayedq_limitstate WHERE definition IS NOT NULL
    UNION ALL SELECT FROM delayedq_pausedqueue WHERE queue = ANY(ARRAY(SELECT unnest(%(queues)s::text[])))
    UNION ALL SELECT FROM delayedq_pausedtask WHERE kind = ANY(ARRAY(SELECT unnest(%(kinds)s::text[])))
)"""

_NEXT = f"""
SELECT next.message_id FROM freed CROSS JOIN LATERAL (
    SELECT message_id {WAITING.format("freed")} AND due_at <= {NOW}
    ORDER BY urgency, due_at, message_id LIMIT freed.places FOR UPDATE SKIP LOCKED
) AS next
"""

# The place of each message that ends passes to the next one of its channel, see `continuing`. Where there is none that
# is due and free, the channel is told, as by TELL. Messages to which others pass a place at this moment are left out.
CONTINUE = f"""
WITH {ENDED.format(free=free(f"AND {_NOTHING_SET}"))},
dropped AS (
    DELETE FROM delayedq_channelmessage WHERE message_id = ANY(ARRAY(SELECT id FROM ended)) RETURNING channel_id
),
freed AS MATERIALIZED (SELECT channel_id AS id, count(*) AS places FROM dropped GROUP BY channel_id),
claimed AS ({leased(_NEXT)}),
taken AS ({_TAKEN} RETURNING place.channel_id),
told AS (
    {_TOLD}
    SELECT notice.* FROM {_NOTICES} AS notice (id) LEFT JOIN freed USING (id)
    WHERE EXISTS (SELECT FROM ended)
        AND (freed.places <= (SELECT count(*) FROM taken WHERE taken.channel_id = notice.id)) IS NOT TRUE
)
SELECT answer.ids, claimed.* FROM answer LEFT JOIN claimed ON true
"""


# A whole claim from the channels of a group in one statement, where their limit is a concurrency and nothing else.
#
# It is what `claims` does with `look`, `deal` and START, in the same words: what is in turn, what runs, to
# whom the places go, what is leased, and how each channel is left. With 1,000 channels and batches of 400, bringing
# 220 channels to the worker and back, and dealing there, took a third of the time of its thread for the database.


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
taken AS ({_TAKEN}),
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

# After it: when is the first of all channels that rest looked at again?
RESTS_UNTIL = "SELECT min(ready_at) FROM delayedq_channel WHERE is_ready = false"

_READY_TO_DEAL = "FROM delayedq_channel AS channel WHERE group_id = %(group)s AND is_ready = true"

_FIRST_TO_DEAL = f"SELECT channel {_READY_TO_DEAL} ORDER BY turn, id LIMIT %(most)s"

_PAIRED_TO_DEAL = f"""
    SELECT channel FROM (
        SELECT channel, turn, id, sum({AT_ONCE}) OVER (ORDER BY turn, id ROWS UNBOUNDED PRECEDING) - {AT_ONCE} AS taken
        {_READY_TO_DEAL} ORDER BY turn, id LIMIT %(most)s
    ) AS following WHERE taken < %(most)s ORDER BY turn, id
"""


@cache
def deal(*, in_pairs: bool) -> str:
    """in_pairs: channels of short messages get two places at a time, as in `look`."""
    return _DEAL.format(ready=_PAIRED_TO_DEAL if in_pairs else _FIRST_TO_DEAL, at_once=AT_ONCE if in_pairs else "1")


class PostgreSQLChannels(Channels):
    database: PostgreSQLDatabase

    def lock(self) -> datetime | None:
        moment: datetime | None = self.database.rows(LOCK)[0][0]
        return moment

    def _settle_and_lock(
        self, transitions: Sequence[Transition], limited: Sequence[Transition], request: ChannelRequest
    ) -> tuple[Settled, datetime | None, Events]:
        """In one round trip if each of them is a Finish, and no feature may offer messages at their end.

        The end of a step waits for others of its flow, and may store thousands of messages. That comes before the lock:
        no other claim from channels takes place until the transaction ends.
        """
        finishes = [one for one in transitions if isinstance(one, Finish)]
        if len(finishes) < len(transitions) or any(one.may_offer for one, _ in concerned(finishes)):
            return super()._settle_and_lock(transitions, limited, request)
        lock = Given(LOCK, {}, may_prepare=True)
        rows, ((moment, *_),), told = self.database.batches(
            finishing(finishes), lock, lambda: told_of(limited, Settled())
        )
        settled = self.store.followed(transitions, ended_of(finishes, rows), request.worker)
        return settled, moment, told_of(limited, settled) if any(settled[:3]) else told

    def _settle_and_continue(
        self, finishes: Sequence[Finish], request: ChannelRequest
    ) -> tuple[Settled, ChannelClaim] | None:
        told = _told(told_of(finishes, Settled()))
        rows = self.database.batch(CONTINUE, {**of_finishes(finishes), **told, **_leased(request)}, may_prepare=True)
        missing = missing_of(finishes, rows[0][0])
        if len(missing) == len(finishes):
            return None
        claimed = [Claimed._make(row[1:]) for row in rows if row[1] is not None]
        settled = settled_or_busy(self.store.settle, missing, request.worker)
        return settled, ChannelClaim(claimed, AS_BEFORE if len(claimed) == len(finishes) else 0.0)

    def line_up(self, lined: Mapping[int, ChannelAddress]) -> None:
        homes = numbers(where.id for where in lined.values())
        self.database.batch(LINE_UP, {"ids": numbers(lined), "homes": homes, **_named({*lined.values()})})

    def tell(self, told: Events) -> None:
        if told.notices:
            self.database.batch(TELL, _told(told))

    def hear(self, now: datetime, told: Events) -> ClaimContext:  # noqa: ARG002 - the store is bound to it
        return self._surroundings(self.database.batch(HEAR, _heard(told), may_prepare=True))

    def look(self, asked: ChannelQuery, now: datetime) -> list[ChannelView]:  # noqa: ARG002
        group, most, room, *_ = asked
        parameters = {"group": group.id, "queue": group.queue, "kind": group.kind, "most": most, "room": max(room, 0)}
        given = {"others": numbers(asked.others), "expired": asked.expired}
        statement = look(is_strict=asked.is_strict, with_others=bool(asked.others), in_pairs=asked.in_pairs)
        rows = self.database.batch(statement, {**parameters, **given})
        return [ChannelView(ChannelState._make(row[:9]), Running._make(row[9:11]), *row[11:]) for row in rows]

    def deal(self, asked: ChannelQuery, limit: Limit, request: ChannelRequest) -> Dealt:
        given = {"group": asked.group.id, "most": asked.most, "room": asked.room}
        parameters = {**given, "concurrency": limit.concurrency, "weight": limit.weight, **_leased(request)}
        dealing = Given(deal(in_pairs=asked.in_pairs), parameters, may_prepare=True)
        rows, ((until,),), _ = self.database.batches(dealing, Given(RESTS_UNTIL, {}, may_prepare=True), lambda: None)
        ended, is_more = rows[0][:2]
        chosen = {id_: name for _, _, name, id_, *_ in rows if id_ is not None}
        claimed = [Claimed._make(row[4:]) for row in rows if row[4] is not None]
        return Dealt(chosen, claimed, is_more, ended, until)

    def first_due(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        parameters = {"channels": numbers(most), "most": numbers(most.values())}
        return [(channel, id_) for channel, ids in self.database.batch(HEADS, parameters) for id_ in ids]

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        rows = self.database.batch(CLAIM_IDS, {"ids": numbers(ids), **_leased(request)})
        return [Claimed._make(row) for row in rows]

    def start(self, start: Start, request: ChannelRequest) -> list[Claimed]:
        parameters = {"ids": numbers(start.ids), **_leased(request), **_kept(start)}
        return [Claimed._make(row) for row in self.database.batch(START, parameters)]

    def keep(self, start: Start) -> None:
        rest = {
            "names": texts([one.name for one in start.channels]),
            "seconds": numbers(one.seconds for one in start.channels),
            "ready_at": _moments([one.ready_at for one in start.channels]),
        }
        self.database.batch(KEEP, {**_kept(start), **rest})


def _leased(request: ChannelRequest) -> dict[str, Any]:
    return {**of_lease(request.lease, request.worker, request.token), "expired": request.expired}


def _named(channels: Collection[ChannelAddress | Notice]) -> dict[str, Any]:
    """Both begin with the id of the channel."""
    return {
        "channels": numbers(one[0] for one in channels),
        "groups": numbers(one.group_id for one in channels),
        "queues": texts([one.queue for one in channels]),
        "kinds": texts([one.kind for one in channels]),
        "names": texts([one.name for one in channels]),
    }


def _told(told: Events) -> dict[str, Any]:
    return {**_ended(told), **_named(told.notices), "moments": texts([one.at.isoformat() for one in told.notices])}


def _ended(told: Events) -> dict[str, Any]:
    return {
        "channels": numbers(one.channel_id for one in told.notices),
        "ended": numbers(one.ended for one in told.notices),
        "took": numbers(one.seconds for one in told.notices),
        "ended_ids": numbers(told.ended),
    }


def _heard(told: Events) -> dict[str, Any]:
    charged, uncharged = told.notices, told.uncharged.items()
    return {
        "channels": numbers([*(one.channel_id for one in charged), *(id_ for id_, _ in uncharged)]),
        "ended": numbers([*(one.ended for one in charged), *(ran.number for _, ran in uncharged)]),
        "took": numbers([*(one.seconds for one in charged), *(ran.seconds for _, ran in uncharged)]),
        "uncharged": numbers([*(0 for _ in charged), *(ran.number for _, ran in uncharged)]),
        "ended_ids": numbers(told.ended),
    }


def _kept(start: Start) -> dict[str, Any]:
    channels = start.channels
    return {
        "group": start.group.id,
        "turn": start.group.turn,
        "channels": numbers(one.id for one in channels),
        "ready": numbers(int(one.is_ready) for one in channels),
        "ready_at": _moments([None if one.is_ready else one.ready_at for one in channels]),
        "turns": numbers(one.turn for one in channels),
        "weights": numbers(one.weight for one in channels),
        "tokens": numbers(one.tokens for one in channels),
        "tokens_at": _moments([one.tokens_at for one in channels]),
        "gone": numbers(start.gone),
    }


def _moments(moments: Sequence[datetime | None]) -> str | None:
    return texts([None if one is None else one.isoformat() for one in moments])
