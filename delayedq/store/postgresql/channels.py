"""Messages with a channel on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.store.channels.requests import ChannelState, Dealt, Look, Running
from delayedq.store.channels.verbs import Channels
from delayedq.store.postgresql import channels_sql as sql
from delayedq.store.postgresql import deal_sql
from delayedq.store.postgresql.parameters import numbers, of_lease, texts
from delayedq.store.protocol import Claimed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.core.limiting import Limit
    from delayedq.store.channels.offers import Address
    from delayedq.store.channels.requests import Asked, ChannelRequest, Notice, Start, Surroundings, Told
    from delayedq.store.postgresql.database import PostgreSQLDatabase


class PostgreSQLChannels(Channels):
    database: PostgreSQLDatabase

    def lock_channels(self) -> datetime | None:
        moment: datetime | None = self.database.rows(sql.LOCK)[0][0]
        return moment

    def line_up(self, lined: Mapping[int, Address]) -> None:
        homes = numbers(where.id for where in lined.values())
        self.database.batch(sql.LINE_UP, {"ids": numbers(lined), "homes": homes, **_named({*lined.values()})})

    def tell(self, told: Told) -> None:
        if told.notices:
            self.database.batch(sql.TELL, _told(told))

    def hear(self, now: datetime, told: Told) -> Surroundings:  # noqa: ARG002 - the store is bound to it
        return self._surroundings(self.database.batch(sql.HEAR, _ended(told)))

    def look(self, asked: Asked, now: datetime) -> list[Look]:  # noqa: ARG002
        group, most, room, *_ = asked
        parameters = {"group": group.id, "queue": group.queue, "kind": group.kind, "most": most, "room": max(room, 0)}
        given = {"others": numbers(asked.others), "expired": asked.expired}
        statement = sql.look(is_strict=asked.is_strict, with_others=bool(asked.others), in_pairs=asked.in_pairs)
        rows = self.database.batch(statement, {**parameters, **given})
        return [Look(ChannelState._make(row[:9]), Running._make(row[9:11]), *row[11:]) for row in rows]

    def deal(self, asked: Asked, limit: Limit, request: ChannelRequest) -> Dealt:
        given = {"group": asked.group.id, "most": asked.most, "room": asked.room}
        parameters = {**given, "concurrency": limit.concurrency, "weight": limit.weight, **_leased(request)}
        rows = self.database.batch(deal_sql.deal(in_pairs=asked.in_pairs), parameters)
        ended, is_more = rows[0][:2]
        chosen = {id_: name for _, _, name, id_, *_ in rows if id_ is not None}
        claimed = [Claimed._make(row[4:]) for row in rows if row[4] is not None]
        return Dealt(chosen, claimed, is_more, ended)

    def channel_heads(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        parameters = {"channels": numbers(most), "most": numbers(most.values())}
        return [(channel, id_) for channel, ids in self.database.batch(sql.HEADS, parameters) for id_ in ids]

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        rows = self.database.batch(sql.CLAIM_IDS, {"ids": numbers(ids), **_leased(request)})
        return [Claimed._make(row) for row in rows]

    def start(self, start: Start, request: ChannelRequest) -> list[Claimed]:
        parameters = {"ids": numbers(start.ids), **_leased(request), **_kept(start)}
        return [Claimed._make(row) for row in self.database.batch(sql.START, parameters)]

    def keep_channels(self, start: Start) -> None:
        rest = {
            "names": texts([one.name for one in start.channels]),
            "seconds": numbers(one.seconds for one in start.channels),
            "ready_at": _moments([one.ready_at for one in start.channels]),
        }
        self.database.batch(sql.KEEP, {**_kept(start), **rest})


def _leased(request: ChannelRequest) -> dict[str, Any]:
    return {**of_lease(request.lease, request.worker, request.token), "expired": request.expired}


def _named(channels: Collection[Address | Notice]) -> dict[str, Any]:
    """Both begin with the id of the channel."""
    return {
        "channels": numbers(one[0] for one in channels),
        "groups": numbers(one.group_id for one in channels),
        "queues": texts([one.queue for one in channels]),
        "kinds": texts([one.kind for one in channels]),
        "names": texts([one.name for one in channels]),
    }


def _told(told: Told) -> dict[str, Any]:
    return {**_ended(told), **_named(told.notices), "moments": texts([one.at.isoformat() for one in told.notices])}


def _ended(told: Told) -> dict[str, Any]:
    return {
        "channels": numbers(one.channel_id for one in told.notices),
        "ended": numbers(one.ended for one in told.notices),
        "took": numbers(one.seconds for one in told.notices),
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
