"""Read and edit messages for an operator: the part of the store that workers do not use.

An edit names each message *as it was seen*, and changes it only while it still is so and no worker holds it: an attempt
that started meanwhile, a retry, a replacement and another operator's edit are all left alone. To undo an edit is to
make the opposite one. A lease that expired is taken away, so the worker that lost it changes nothing any more.

A keyset scan reads a lane, or the history, in the order of its index and visits a limited number of rows, however few
of them match: it is quick in a table of any size, and says how far it came.

`delayedq.store.operator_store(alias)` makes the store that does it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from itertools import batched, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from delayedq.core.conditions import KeyRange
from delayedq.core.errors import last_error
from delayedq.sql.states import MessageState, condition
from delayedq.store import figures
from delayedq.store.database import retry_on_deadlock
from delayedq.store.feature import FEATURES, tell_revived
from delayedq.store.figures import ErrorGroupStore, FiguresStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from delayedq.sql.dialects import Dialect
    from delayedq.store.base import Store
    from delayedq.store.database import Database
    from delayedq.store.protocol import Lane

# Keyset scans: how an index is read in its order, a limited number of rows at a time. One text for all databases.
#
# The inner SELECT is one range of an index, with a limit of its own; whatever else is asked is asked of its rows. The
# last row it may read comes out in any case (`step = budget`) and tells how far the scan came.


_ALONG = """
SELECT at, id, chosen, step FROM (
    SELECT {time} AS at, id, CASE WHEN {{chosen}} THEN 1 ELSE 0 END AS chosen,
        row_number() OVER (ORDER BY {time} {order}, id {order}) AS step
    FROM {table} AS scanned
    WHERE {{bounds}}
    ORDER BY {time} {order}, id {order} LIMIT %(budget)s
) AS numbered
WHERE chosen = 1 OR step = %(budget)s
ORDER BY at {order}, id {order} LIMIT %(limit)s
"""

LANE = _ALONG.format(time="scheduled_at", order="ASC", table="delayedq_message")

HISTORY = _ALONG.format(time="finished_at", order="DESC", table="delayedq_finishedmessage")

_LANE_BOUNDS = "queue = {queue} AND priority = {priority} AND scheduled_at <= %(until)s AND "

#: What a keyset scan along a lane may be asked for; an argument as it is, and as JSON has it.
LIVE = {
    "kind": "kind = %(kind)s",
    "worker": "leased_by = %(worker)s",
    "argument": "({position}(payload, %(argument)s) > 0 OR {position}(payload, %(as_json)s) > 0)",
}


def lane(dialect: Dialect, state: MessageState | None, wanted: Sequence[str], *, queue: str, priority: str) -> str:
    """A keyset scan along a lane, whose queue and priority stand for columns or parameters."""
    asked = [LIVE[name].format(position=dialect.position) for name in wanted]
    if state is not None:
        asked.append(condition(state, "scanned"))
    position = dialect.after.format(columns="scheduled_at, id", time="scheduled_at", sign=">")
    bounds = _LANE_BOUNDS.format(queue=queue, priority=priority) + position
    return LANE.format(chosen=" AND ".join(asked) or "1 = 1", bounds=bounds)


#: What a keyset scan through the history may be asked for. (To MySQL, `key` alone is a word of its own.)
ENDED = {name: f"scanned.{name} = %({name})s" for name in ("outcome", "queue", "kind", "priority", "worker")} | {
    "key": "substr(scanned.key, 1, %(key_length)s) = %(key)s",
    "argument": LIVE["argument"],
    "error": "{position}(lower(scanned.error), %(error)s) > 0",
}


def history(dialect: Dialect, wanted: Sequence[str], *, dead: bool, grouped: bool = False) -> str:
    """A keyset scan back through the history; dead letters, and those of one error group, have indexes of their own."""
    position = dialect.after.format(columns="finished_at, id", time="finished_at", sign="<")
    bounds = position + " AND finished_at >= %(since)s"
    if grouped:
        bounds += " AND fingerprint = %(fingerprint)s"
    elif dead:
        bounds += " AND outcome = 'failed'"
    chosen = " AND ".join(ENDED[name] for name in wanted).format(position=dialect.position)
    return HISTORY.format(chosen=chosen or "1 = 1", bounds=bounds)


#: So many lanes are scanned by one statement where no statement takes a list of them: the text has each.
LANES = 250


# How much waits in a queue, and since when: its lanes one after the other, each in the order of the due index, until
# `most` are counted.


_ONE_LANE = (
    "SELECT scheduled_at AS at FROM delayedq_message WHERE queue = %({queue})s AND priority = %({priority})s"
    " AND {{state}} ORDER BY scheduled_at LIMIT {{limit}}"
)


def _waits(place: int, lanes: Sequence[str]) -> str:
    """One row for a queue. `lanes`: `_ONE_LANE` of each."""

    def part(state: str, limit: str) -> str:
        each = (one.format(state=state, limit=limit) for one in lanes)
        return " UNION ALL ".join(f"SELECT at FROM ({one}) AS lane_{number}" for number, one in enumerate(each))

    due = condition(MessageState.DUE, "delayedq_message")
    counts = (
        f"(SELECT COUNT(*) FROM ({part(state, '%(most)s')} LIMIT %(most)s) AS counted)"
        for state in (due, "scheduled_at > %(now)s")
    )
    oldest = f"(SELECT MIN(at) FROM ({part(due, '1')}) AS heads)"
    return f"SELECT {place}, {', '.join(counts)}, {oldest}"


# Operator


class Waiting(NamedTuple):
    """How much waits in a queue. `oldest`: when its first due message became due; None: none is due."""

    due: int
    scheduled: int
    oldest: datetime | None

    def plus(self, more: Waiting, most: int) -> Waiting:
        """Both together, each counted up to `most`."""
        oldest = min((one for one in (self.oldest, more.oldest) if one is not None), default=None)
        return Waiting(min(most, self.due + more.due), min(most, self.scheduled + more.scheduled), oldest)


class Seen(NamedTuple):
    """A message as it was read."""

    id: int
    generation: int
    attempt: int
    scheduled_at: datetime
    queue: str
    priority: int


class Move(NamedTuple):
    """Where a message shall wait from now on."""

    seen: Seen
    scheduled_at: datetime
    queue: str
    priority: int


class Rewrite(NamedTuple):
    """Another payload for a waiting message that still has the payload `before`."""

    seen: Seen
    before: str
    after: str


class Revival(NamedTuple):
    """An ended message that shall live again, under its old id.

    It starts over at `scheduled_at`, with all its attempts; None: it goes on as it was when it ended.
    """

    id: int
    scheduled_at: datetime | None = None


class Position(NamedTuple):
    """A place in the order of time and id."""

    at: datetime
    id: int


FIRST = Position(datetime(1000, 1, 1, tzinfo=UTC), 0)

LAST = Position(datetime(9999, 12, 31, tzinfo=UTC), 2**63 - 1)


def as_json(text: str) -> str:
    r"""The text as it stands in a payload, between the quotes.

    >>> as_json('"a"') == r'\"a\"'
    True
    """
    return json.dumps(text)[1:-1]


class LiveQuery(NamedTuple):
    """What a keyset scan asks of live messages. argument: a text in their payload. worker: who holds or held them."""

    state: MessageState | None = None
    kind: str | None = None
    argument: str | None = None
    worker: str | None = None


class EndedQuery(NamedTuple):
    """What a keyset scan asks of ended messages.

    key: what their key begins with. error: what stands in the line of their error, in upper or lower case. argument: a
    text in their payload.
    """

    outcome: str | None = None
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    fingerprint: int | None = None
    priority: int | None = None
    worker: str | None = None
    argument: str | None = None


ALL_KEYS = KeyRange.of_prefix("")

#: Of all.
LIVE_OF_ALL, ENDED_OF_ALL = LiveQuery(), EndedQuery()


class KeysetPage(NamedTuple):
    """What a keyset scan found, in its order, and how far it came: None is the end.

    `beyond` is what some of its lanes have further on, where others may have more. `read`: of how many rows, if it did
    not come to the end.
    """

    found: list[Position]
    reached: Position | None
    beyond: Sequence[Position] = ()
    read: int = 0


class OperatorStore(ABC):
    """The store of one database as an operator sees it. Every verb may raise django.db.Error."""

    database: Database
    #: The statement that finds the error groups.
    groups: ClassVar[str] = figures.GROUPS

    def __init__(self, store: Store) -> None:
        self._store = store
        self.database = store.database

    def at(self, moment: datetime | None) -> Self:
        """The same store, which judges at this moment; None: by the database's clock."""
        return type(self)(self._store.at(moment))

    @property
    def figures(self) -> FiguresStore:
        """What the dashboard counts."""
        return FiguresStore(self.database)

    @property
    def error_groups(self) -> ErrorGroupStore:
        """The dead letters by what they failed of."""
        return ErrorGroupStore(self.database, self.groups)

    @abstractmethod
    def keyed_kinds(self, keys: KeyRange = ALL_KEYS) -> list[str]:
        """Each kind that has messages with keys in this range; on MySQL and MariaDB, with any keys."""

    # Edits

    @retry_on_deadlock
    def move(self, moves: Sequence[Move]) -> set[int]:
        """Change when and where messages wait; returns the ids of those that were still as seen.

        Workers are woken after commit.
        """
        with self.database.atomic():
            moved = self._move(moves)
            for feature in FEATURES:
                feature.moved(self._store, moved)
        return moved

    @abstractmethod
    def _move(self, moves: Sequence[Move]) -> set[int]: ...

    @abstractmethod
    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        """End messages as cancelled; returns the ids of those that were still as seen."""

    @abstractmethod
    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        """Give messages another payload; returns the ids of those that were still as seen, and had the one before."""

    @abstractmethod
    def stop(self, seen: Sequence[Seen]) -> set[int]:
        """End messages as cancelled that a worker holds; returns the ids of those that were held and still as seen.

        Their attempts are told by `lease_lost` when their lease is to be renewed, and change nothing any more. The
        history says that they started when they were claimed.
        """

    def relabel(self, ids: Collection[int], outcome: str, new_outcome: str) -> set[int]:
        """Give ended messages with this outcome another one; returns the ids of those that had it.

        Dead letters get the line and the fingerprint of their last error; what is none any more loses them.
        """
        from delayedq.models import FinishedMessage  # stores are imported before the models are loaded

        messages = FinishedMessage.objects.using(self.database.alias)
        with self.database.atomic():
            ended = messages.filter(id__in=ids, outcome=outcome).only("id", "errors").order_by("id")
            found = list(ended.select_for_update())
            for one in found:
                one.outcome = new_outcome
                dead = last_error(one.errors) if new_outcome == "failed" else None
                one.error, one.fingerprint = dead or (None, None)
            messages.bulk_update(found, ["outcome", "error", "fingerprint"], batch_size=100)
        return {one.pk for one in found}

    @retry_on_deadlock
    def revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]:
        """Take ended messages with this outcome out of the history and into the queue; returns their ids.

        What has another outcome by now stays, and so does a message whose key a live one has taken. Workers are woken
        after commit.
        """
        with self.database.atomic():
            revived = self._revive(revivals, outcome)
            tell_revived(self._store, revived)
        return revived

    # Queues

    def waiting(self, lanes: Sequence[Lane], most: int) -> dict[str, Waiting]:
        """Of each queue of these lanes, up to `most` due and `most` scheduled messages. A statement per LANES lanes."""
        found: dict[str, Waiting] = {}
        for some in batched(sorted(lanes, key=attrgetter("queue")), LANES):
            priorities = {name: [one.priority for one in each] for name, each in groupby(some, attrgetter("queue"))}
            for name, waiting in self._waiting(priorities, most):
                found[name] = found[name].plus(waiting, most) if name in found else waiting
        return found

    def _waiting(self, queues: Mapping[str, Sequence[int]], most: int) -> Iterator[tuple[str, Waiting]]:
        given: dict[str, Any] = {"most": most, "now": self._stored(self.database.now())}
        rows = []
        for place, (queue, priorities) in enumerate(queues.items()):
            lanes = [f"priority_{place}_{number}" for number, _ in enumerate(priorities)]
            given |= {f"queue_{place}": queue, **dict(zip(lanes, priorities, strict=True))}
            rows.append(_waits(place, [_ONE_LANE.format(queue=f"queue_{place}", priority=one) for one in lanes]))
        names, instant = [*queues], self.database.dialect.instant
        for place, due, scheduled, oldest in self.database.counted(" UNION ALL ".join(rows), given):
            yield names[place], Waiting(due, scheduled, None if oldest is None else instant(oldest))

    @abstractmethod
    def _revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]: ...

    # Keyset scans

    def keyset_scan(
        self,
        lanes: Sequence[Lane],
        after: Position = FIRST,
        until: datetime = LAST.at,
        limit: int = 100,
        budget: int = 10_000,
        asked: LiveQuery = LIVE_OF_ALL,
    ) -> KeysetPage:
        """Live messages that are due after a position and not after `until`, first the earliest.

        Finds up to `limit`, and reads up to `budget` rows in each lane.
        """
        values = asked._asdict()
        state = values.pop("state")
        parameters = {
            **self._position(after),
            "until": self._stored(until),
            "limit": limit,
            "budget": limit if asked == LIVE_OF_ALL else budget,
            **values,
            "as_json": asked.argument and as_json(asked.argument),
            "now": self._stored(self.database.now()),
        }
        return merged(self._scan_lanes(lanes, state, parameters), limit)

    def _scan_lanes(
        self, lanes: Sequence[Lane], state: MessageState | None, parameters: dict[str, Any]
    ) -> list[KeysetPage]:
        return [page for some in batched(lanes, LANES) for page in self._scan_some(some, state, parameters)]

    def _scan_some(
        self, lanes: Sequence[Lane], state: MessageState | None, parameters: dict[str, Any]
    ) -> list[KeysetPage]:
        """One statement."""
        parts, places = [], dict[str, Any]()
        for number, each in enumerate(lanes):
            words = {"queue": f"%(queue_{number})s", "priority": f"%(priority_{number})s"}
            along = lane(self.database.dialect, state, wanted_of(parameters), **words)
            parts.append(f"SELECT at, id, chosen, step, {number} AS place FROM ({along}) AS lane_{number}")
            places |= {f"queue_{number}": each.queue, f"priority_{number}": each.priority}
        return self._pages(self.database.rows(" UNION ALL ".join(parts), {**parameters, **places}), parameters)

    def _pages(self, rows: Sequence[tuple[Any, ...]], parameters: dict[str, Any]) -> list[KeysetPage]:
        """Rows of the keyset scans of several lanes: at, id, chosen, step, place."""
        by_place = groupby(sorted(rows, key=itemgetter(4, 3)), itemgetter(4))
        return [self._page([*scanned], parameters) for _, scanned in by_place]

    def keyset_scan_history(
        self,
        before: Position = LAST,
        since: datetime = FIRST.at,
        limit: int = 100,
        budget: int = 10_000,
        asked: EndedQuery = ENDED_OF_ALL,
    ) -> KeysetPage:
        """Ended messages, first the latest, that ended before a position and not before `since`."""
        grouped, failed = asked.fingerprint is not None, asked.outcome == "failed"
        dead = failed and bool(self.database.dialect.dead)  # else no index has them by time
        by_index = {"outcome", "fingerprint"} if dead or (failed and grouped) else {"fingerprint"}
        wanted = [name for name, value in asked._asdict().items() if value is not None and name not in by_index]
        statement = history(self.database.dialect, wanted, dead=dead, grouped=grouped)
        parameters = {
            **self._position(before),
            "since": self._stored(since),
            "limit": limit,
            "budget": budget if wanted else limit,
            **asked._asdict(),
            "key_length": len(asked.key or ""),
            "error": (asked.error or "").lower(),
            "as_json": asked.argument and as_json(asked.argument),
        }
        page = self._page(self.database.rows(statement, parameters), parameters)
        return merged([page], limit, backwards=True)

    def _position(self, position: Position) -> dict[str, Any]:
        return {"at": self._stored(position.at), "id": position.id}

    def _stored(self, moment: datetime) -> Any:
        return self.database.dialect.stored(moment)

    def _page(self, rows: Sequence[tuple[Any, ...]], parameters: dict[str, Any]) -> KeysetPage:
        """Rows of one keyset scan: at, id, chosen, step."""
        instant = self.database.dialect.instant
        positions = [Position(instant(at), id_) for at, id_, *_ in rows]
        found = [position for position, row in zip(positions, rows, strict=True) if row[2]]
        cut = bool(rows) and (len(rows) == parameters["limit"] or rows[-1][3] == parameters["budget"])
        return KeysetPage(found, positions[-1] if cut else None, read=rows[-1][3] if cut else 0)


def wanted_of(parameters: dict[str, Any]) -> list[str]:
    """What `lane` is asked for, by the parameters of a keyset scan."""
    return [name for name in LIVE if parameters[name] is not None]


def merged(pages: Collection[KeysetPage], limit: int, *, backwards: bool = False) -> KeysetPage:
    """Several keyset scans as one: in order, and no further than the one that came least far."""
    pick = max if backwards else min
    ends = [page.reached for page in pages if page.reached is not None]
    reached = pick(ends) if ends else None
    found = sorted((position for page in pages for position in page.found), reverse=backwards)
    within = [position for position in found if reached is None or pick(position, reached) == position]
    read = sum(page.read for page in pages)
    if len(within) > limit:
        return KeysetPage(within[:limit], within[limit - 1], read=read)
    return KeysetPage(within, reached, found[len(within) : limit], read)
