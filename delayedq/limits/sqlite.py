"""Messages with a channel on SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from delayedq.limits.channels import Channels
from delayedq.limits.requests import Lease
from delayedq.sql.dialects import text
from delayedq.sql.priority import BOUNDARY
from delayedq.store.sqlite.database import UNRENEWED, claimed_from, leased, lives
from delayedq.store.sqlite.sql import LEASE, WRITE_LOCK, free

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.limits.requests import ChannelRequest
    from delayedq.store.protocol import Claimed
    from delayedq.store.sqlite.database import SQLiteDatabase

CLAIM_IDS = LEASE.format(
    which=f"""id IN (SELECT value FROM json_each(%(ids)s)) AND priority < {BOUNDARY} AND scheduled_at <= %(now)s
    AND {free("%(expired_by)s")}"""
)

# The first that became due. In the order of claims, the index has what is not due between them, which may be much.
DUE = """
SELECT urgency, due_at, message_id FROM delayedq_channelmessage INDEXED BY delayedq_channel_due
WHERE channel_id = %(channel)s AND lease_token = 0 AND due_at <= %(moment)s
ORDER BY due_at
LIMIT %(most)s
"""

HEADS = """
SELECT message_id FROM delayedq_channelmessage INDEXED BY delayedq_channel_order
WHERE channel_id = %(channel)s AND lease_token = 0 AND due_at <= %(moment)s
ORDER BY urgency, due_at, message_id
LIMIT %(most)s
"""


class SQLiteChannels(Channels):
    database: SQLiteDatabase

    def lock(self) -> datetime:
        """Who writes is alone."""
        self.database.write(WRITE_LOCK)
        return self.database.now()

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        lease = leased(self.database.now(), request.lease, request.worker, request.token)
        expired_by = lease["now"] if request.expired else ""
        parameters = {**lease, "ids": json.dumps(ids), "expired_by": expired_by}
        return [claimed_from(row) for row in self.database.rows(CLAIM_IDS, parameters)]

    def first_due(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        for channel, number in most.items():
            parameters = {"channel": channel, "most": number, "moment": text(now)}
            heads = sorted(self.database.rows(DUE, parameters))
            if len(heads) == number:  # there may be more
                heads = self.database.rows(HEADS, parameters)
            yield from ((channel, message) for *_, message in heads)

    def held_among(self, ids: Sequence[int], now: datetime) -> dict[int, Lease]:
        """Also those that ran out and are not claimed, as their worker lives and waits for the write lock."""
        from delayedq.models import Message

        rows = Message.objects.using(self.database.alias).filter(id__in=ids, lease_token__isnull=False)
        named = rows.values_list("id", "lease_token", "leased_until", "leased_by")
        return {id_: Lease(token, until) for id_, token, until, worker in named if until and _holds(until, worker, now)}


def _holds(until: datetime, worker: str | None, now: datetime) -> bool:
    return until > now or (until > now - UNRENEWED and lives(worker or ""))
