"""The walks of `edits.Edits`, for every store."""

from __future__ import annotations

from abc import abstractmethod
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from delayedq.store import walks_sql as sql
from delayedq.store.base import BaseStore
from delayedq.store.edits import FIRST, LAST, Position, State, Walk, merged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.protocol import Lane


class Walks(BaseStore):
    _after: ClassVar[str] = sql.BY_ROWS

    @abstractmethod
    def _stored(self, moment: datetime) -> Any:
        """A time as a parameter of a statement."""

    @abstractmethod
    def _instant(self, stored: Any) -> datetime:
        """The reverse."""

    def walk(
        self,
        lanes: Sequence[Lane],
        after: Position = FIRST,
        until: datetime = LAST.at,
        limit: int = 100,
        budget: int = 10_000,
        *,
        state: State | None = None,
        kind: str | None = None,
        now: datetime | None = None,
    ) -> Walk:
        everything = state is None and kind is None
        parameters = {
            **self._position(after),
            "until": self._stored(until),
            "limit": limit,
            "budget": limit if everything else budget,
            "kind": kind,
            "now": self._stored(now or self.now()),
        }
        return merged(self._walk_lanes(lanes, state, parameters), limit)

    def _walk_lanes(self, lanes: Sequence[Lane], state: State | None, parameters: dict[str, Any]) -> list[Walk]:
        statement = sql.lane(
            state,
            by_kind=parameters["kind"] is not None,
            after=self._after,
            now="%(now)s",
            queue="%(queue)s",
            priority="%(priority)s",
        )
        places = ({"queue": lane.queue, "priority": lane.priority} for lane in lanes)
        return [self._walked(self._rows(statement, {**parameters, **place}), parameters) for place in places]

    def walk_back(
        self,
        before: Position = LAST,
        since: datetime = FIRST.at,
        limit: int = 100,
        budget: int = 10_000,
        *,
        outcome: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        key: str | None = None,
    ) -> Walk:
        dead = outcome == "failed"
        asked = {"outcome": None if dead else outcome, "queue": queue, "kind": kind, "key": key}
        wanted = [name for name, value in asked.items() if value is not None]
        statement = sql.history(wanted, dead=dead, before=self._after)
        parameters = {
            **self._position(before),
            "since": self._stored(since),
            "limit": limit,
            "budget": budget if wanted else limit,
            **asked,
        }
        return merged([self._walked(self._rows(statement, parameters), parameters)], limit, backwards=True)

    def _position(self, position: Position) -> dict[str, Any]:
        return {"at": self._stored(position.at), "id": position.id}

    def _walked(self, rows: Sequence[tuple[Any, ...]], parameters: dict[str, Any]) -> Walk:
        """Rows of one walk: at, id, chosen, step."""
        positions = [Position(self._instant(at), id_) for at, id_, *_ in rows]
        found = [position for position, row in zip(positions, rows, strict=True) if row[2]]
        cut = bool(rows) and (len(rows) == parameters["limit"] or rows[-1][3] == parameters["budget"])
        return Walk(found, positions[-1] if cut else None)


class WalksAtOnce(Walks):
    """All lanes in one statement."""

    def _walk_lanes(self, lanes: Sequence[Lane], state: State | None, parameters: dict[str, Any]) -> list[Walk]:
        along = sql.lane(
            state,
            by_kind=parameters["kind"] is not None,
            after=self._after,
            now="%(now)s",
            queue="lane.queue",
            priority="lane.priority",
        )
        places = {"queues": [lane.queue for lane in lanes], "priorities": [lane.priority for lane in lanes]}
        rows = self._rows(sql.LANES.format(lane=along), {**parameters, **places})
        rows.sort(key=itemgetter(4, 3))
        return [self._walked([*walked], parameters) for _, walked in groupby(rows, itemgetter(4))]
