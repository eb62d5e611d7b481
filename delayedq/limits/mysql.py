"""Messages with a channel on MariaDB and MySQL."""

from __future__ import annotations

from collections import Counter
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.limits.channels import Channels
from delayedq.sql.priority import BOUNDARY
from delayedq.store.mysql.database import text
from delayedq.store.mysql.sql import CLAIMABLE_WHERE, IDS, NOW
from delayedq.store.protocol import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.limits.requests import ChannelRequest
    from delayedq.store.mysql.database import MySQLDatabase
    from delayedq.store.mysql.store import MySQLStore
    from delayedq.store.protocol import Claimed

# The row that stands for the lock of claims from channels.
LOCK = "SELECT id FROM delayedq_limitstate WHERE scope = '' AND channel = '' FOR UPDATE SKIP LOCKED"

HAS_LOCK = "SELECT id FROM delayedq_limitstate WHERE scope = '' AND channel = ''"

MAKE_LOCK = "INSERT IGNORE INTO delayedq_limitstate (scope, channel) VALUES ('', '')"

CLAIM_IDS = CLAIMABLE_WHERE.format(
    index="PRIMARY",
    which=f"id IN %(ids)s AND priority < {BOUNDARY} AND scheduled_at <= {NOW}",
    order="",
)

FORGET_NOTICES = f"""
DELETE notice FROM {IDS} STRAIGHT_JOIN delayedq_channelnotice AS notice FORCE INDEX (PRIMARY) ON notice.id = given.id
"""

_PLACES = f"""{IDS}
STRAIGHT_JOIN delayedq_channelmessage AS place FORCE INDEX (PRIMARY) ON place.message_id = given.id
"""

TAKE_PLACES = f"UPDATE {_PLACES} SET place.lease_token = %(token)s"

DROP_PLACES = f"DELETE place FROM {_PLACES}"

_CHANNEL_HEAD = """(
    SELECT channel_id, urgency, due_at, message_id FROM delayedq_channelmessage FORCE INDEX ({index})
    WHERE channel_id = %s AND lease_token = 0 AND due_at <= %s
    ORDER BY {order} LIMIT %s
)"""


def channel_heads(channels: int) -> str:
    """The first messages of each channel, which takes its id, the moment, and how many."""
    return _union(channels, index="delayedq_channel_order", order="urgency, due_at, message_id")


def due(channels: int) -> str:
    """The same of those that became due first.

    In the order of claims, the index has what is not due between them, which may be much.
    """
    return _union(channels, index="delayedq_channel_due", order="due_at")


def _union(channels: int, **words: str) -> str:
    return " UNION ALL ".join([_CHANNEL_HEAD.format(**words)] * channels)


#: Channels in one statement.
CHANNELS = 100


class MySQLChannels(Channels):
    store: MySQLStore
    database: MySQLDatabase

    def lock(self) -> datetime | None:
        if not self.database.rows(HAS_LOCK):
            self.database.write(MAKE_LOCK)
        return self.database.now() if self.database.rows(LOCK) else None

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        asked = ClaimRequest((), len(ids), request.lease, request.worker, request.token)
        where: dict[str, Any] = {"ids": list(ids), "expired": request.expired}
        return self.store.lease(CLAIM_IDS, [where], asked)

    def first_due(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        moment = text(now)
        for some in batched(most.items(), CHANNELS):
            found = sorted(self._heads(due, some, moment))
            numbers = Counter(channel for channel, *_ in found)
            more = [(channel, number) for channel, number in some if numbers[channel] == number]
            yield from ((channel, message) for channel, *_, message in found if numbers[channel] < most[channel])
            if more:
                rows = self._heads(channel_heads, more, moment)
                yield from ((channel, message) for channel, *_, message in rows)

    def _heads(
        self, statement: Callable[[int], str], most: Sequence[tuple[int, int]], moment: str
    ) -> Sequence[tuple[Any, ...]]:
        values = [value for channel, number in most for value in (channel, moment, number)]
        with self.database.connection.cursor() as cursor:
            cursor.execute(statement(len(most)), values)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def forget_notices(self, ids: Collection[int]) -> None:
        self.database.write_to(FORGET_NOTICES, ids)

    def take_places(self, ids: Collection[int], token: int) -> None:
        self.database.write_to(TAKE_PLACES, ids, token=token)

    def drop_places(self, ids: Collection[int]) -> None:
        self.database.write_to(DROP_PLACES, ids)
