"""Messages with a channel on MariaDB and MySQL."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.store.channels.verbs import Channels
from delayedq.store.mysql import channels_sql
from delayedq.store.mysql.values import text
from delayedq.store.protocol import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.store.channels.requests import ChannelRequest
    from delayedq.store.mysql.database import MySQLDatabase
    from delayedq.store.protocol import Claimed

#: Channels in one statement.
CHANNELS = 100


class MySQLChannels(Channels):
    database: MySQLDatabase

    def lock_channels(self) -> datetime | None:
        if not self.database.rows(channels_sql.HAS_LOCK):
            self.database.write(channels_sql.MAKE_LOCK)
        return self.database.now() if self.database.rows(channels_sql.LOCK) else None

    def unique(self, *_: str) -> None:
        return None

    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        asked = ClaimRequest((), len(ids), request.lease, request.worker, request.token)
        where: dict[str, Any] = {"ids": list(ids), "expired": request.expired}
        return self._lease(channels_sql.CLAIM_IDS, [where], asked)

    def channel_heads(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        moment = text(now)
        for some in batched(most.items(), CHANNELS):
            found = sorted(self._heads(channels_sql.due, some, moment))
            numbers = Counter(channel for channel, *_ in found)
            more = [(channel, number) for channel, number in some if numbers[channel] == number]
            yield from ((channel, message) for channel, *_, message in found if numbers[channel] < most[channel])
            if more:
                rows = self._heads(channels_sql.heads, more, moment)
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
        self.database.write_to(channels_sql.FORGET_NOTICES, ids)

    def take_places(self, ids: Collection[int], token: int) -> None:
        self.database.write_to(channels_sql.TAKE_PLACES, ids, token=token)

    def drop_places(self, ids: Collection[int]) -> None:
        self.database.write_to(channels_sql.DROP_PLACES, ids)

    @abstractmethod
    def _lease(self, statement: str, places: Iterable[Mapping[str, Any]], request: ClaimRequest) -> list[Claimed]: ...
