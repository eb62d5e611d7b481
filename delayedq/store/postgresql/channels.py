"""Messages with a channel on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.store.channels.verbs import Channels
from delayedq.store.postgresql import channels_sql as sql
from delayedq.store.postgresql.parameters import numbers, of_lease
from delayedq.store.protocol import Claimed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.store.channels.requests import ChannelRequest
    from delayedq.store.postgresql.database import PostgreSQLDatabase


class PostgreSQLChannels(Channels):
    database: PostgreSQLDatabase

    def lock_channels(self) -> bool:
        return bool(self.database.rows(sql.LOCK)[0][0])

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        parameters = {"ids": numbers(ids), **of_lease(request.lease, request.worker, request.token)}
        return [Claimed._make(row) for row in self.database.batch(sql.CLAIM_IDS, parameters)]

    def channel_heads(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        parameters = {"channels": numbers(most), "most": numbers(most.values()), "moment": now}
        return [(channel, message) for channel, message in self.database.batch(sql.HEADS, parameters)]
