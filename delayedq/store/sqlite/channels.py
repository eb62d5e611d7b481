"""Messages with a channel on SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from delayedq.store.channels.requests import Held
from delayedq.store.channels.verbs import Channels
from delayedq.store.processes import lives
from delayedq.store.sqlite import channels_sql
from delayedq.store.sqlite.sql import WRITE_LOCK
from delayedq.store.sqlite.values import UNRENEWED, claimed_from, leased, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.store.channels.requests import ChannelRequest
    from delayedq.store.protocol import Claimed
    from delayedq.store.sqlite.database import SQLiteDatabase


class SQLiteChannels(Channels):
    database: SQLiteDatabase

    def lock_channels(self) -> datetime:
        """Who writes is alone."""
        self.database.write(WRITE_LOCK)
        return self.database.now()

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        lease = leased(self.database.now(), request.lease, request.worker, request.token)
        expired_by = lease["now"] if request.expired else ""
        parameters = {**lease, "ids": json.dumps(ids), "expired_by": expired_by}
        return [claimed_from(row) for row in self.database.rows(channels_sql.CLAIM_IDS, parameters)]

    def channel_heads(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        for channel, number in most.items():
            parameters = {"channel": channel, "most": number, "moment": text(now)}
            heads = sorted(self.database.rows(channels_sql.DUE, parameters))
            if len(heads) == number:  # there may be more
                heads = self.database.rows(channels_sql.HEADS, parameters)
            yield from ((channel, message) for *_, message in heads)

    def held_among(self, ids: Sequence[int], now: datetime) -> dict[int, Held]:
        """Also those that ran out and are not claimed, as their worker lives and waits for the write lock."""
        from delayedq.models import Message

        rows = Message.objects.using(self.database.alias).filter(id__in=ids, lease_token__isnull=False)
        named = rows.values_list("id", "lease_token", "leased_until", "leased_by")
        return {id_: Held(token, until) for id_, token, until, worker in named if until and _holds(until, worker, now)}


def _holds(until: datetime, worker: str | None, now: datetime) -> bool:
    return until > now or (until > now - UNRENEWED and lives(worker or ""))
