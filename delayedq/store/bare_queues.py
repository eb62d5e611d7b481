"""The store's part for bare queues: claim messages that meet conditions, and browse lanes.

Neither workers nor queues without a filter use it, so it adds nothing to their statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from delayedq.store.database import retry_on_deadlock
from delayedq.store.operator import Position

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from delayedq.core.conditions import Condition, KeyRange
    from delayedq.store.database import Database
    from delayedq.store.protocol import Claimed, Lane

#: Up to this many messages whose keys are in a range are found by the index of keys, read to the end of the range and
#: sorted; more are found along the due index.
FEW = 1_000

#: Before all messages.
START = Position(datetime.min.replace(tzinfo=UTC), 0)


class Matching(NamedTuple):
    """What to claim of a lane. `by_key`: by the index of keys."""

    lane: Lane
    conditions: tuple[Condition, ...]
    keys: KeyRange | None
    by_key: bool


class Browsed(NamedTuple):
    """A live message as a page shows it; the texts of one that is leased are not read."""

    scheduled_at: datetime
    id: int
    is_leased: bool
    key: str | None
    generation: int
    attempt: int
    payload: str | None
    metadata: str | None

    @property
    def position(self) -> Position:
        return Position(self.scheduled_at, self.id)


class BareQueues(ABC):
    database: Database

    #: The statements of `bare_sql`.
    page: ClassVar[str]
    keys: ClassVar[str]

    @retry_on_deadlock
    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        keys: KeyRange | None = None,
    ) -> list[Claimed]:
        """`claim`, but only messages that meet all conditions, and whose keys are in a range if one is given.

        It reads every due message that does not match; with a range of few keys, only the messages with these.
        For bare queues, which can't be paused: it does not look whether this one is.
        Raises django.db.DataError if it meets a payload that is no JSON, on stores that can't pass over it.
        """
        if limit <= 0 or (keys is not None and keys.is_empty):
            return []
        by_key = keys is not None and self._are_few(lane.queue, keys)
        return self._claim_matching(Matching(lane, tuple(conditions), keys, by_key), limit, lease, worker)

    def _are_few(self, queue: str, keys: KeyRange) -> bool:
        counted: int = self.database.rows(self.keys, {**keys._asdict(), "queue": queue, "limit": FEW + 1})[0][0]
        return counted <= FEW

    @abstractmethod
    def _claim_matching(self, matching: Matching, limit: int, lease: timedelta, worker: str) -> list[Claimed]: ...

    def browse(self, lane: Lane, after: Position = START, limit: int = 200) -> list[Browsed]:
        """The live messages of a lane after a position, by due time and id, leased or not; it reads up to `limit`.

        Fewer than `limit`: the lane has no more. The watermark is not looked at.
        """
        dialect = self.database.dialect
        place = {"queue": lane.queue, "priority": lane.priority, "limit": limit}
        rows = self.database.rows(self.page, {**place, "at": dialect.stored(after.at), "id": after.id})
        return [Browsed(dialect.instant(at), id_, not waits, *rest) for at, id_, waits, *rest in rows]
