"""What an operator does to messages, and how he reads them: the part of the store that workers do not use.

An edit names each message *as it was seen*, and changes it only while it still is so and no worker holds it: an attempt
that started meanwhile, a retry, a replacement and another operator's edit are all left alone. To undo an edit is to
make the opposite one. A lease that expired is taken away, so the worker that lost it changes nothing any more.

A walk reads a lane, or the history, in the order of its index, and looks at a limited number of rows, however few of
them are what is looked for: so it is quick in a table of any size, and says how far it came.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from delayedq.store.protocol import Lane


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


class Revival(NamedTuple):
    """An ended message that shall live again, under its old id.

    It starts over at `scheduled_at`, with all its attempts; None: it goes on as it was when it ended.
    """

    id: int
    scheduled_at: datetime | None = None


class State(StrEnum):
    """What a live message does, as far as its own row tells."""

    DUE = "due"  #: it could start now
    SCHEDULED = "scheduled"  #: it waits for its time, and has not been tried yet
    RETRYING = "retrying"  #: it was tried, and waits for its next attempt
    RUNNING = "running"  #: a worker holds it
    LOST = "lost"  #: its worker died or froze, and nobody has claimed it since


class Position(NamedTuple):
    """A place in the order of time and id."""

    at: datetime
    id: int


FIRST = Position(datetime(1000, 1, 1, tzinfo=UTC), 0)
LAST = Position(datetime(9999, 12, 31, tzinfo=UTC), 2**63 - 1)


class Walk(NamedTuple):
    """What a walk found, in its order, and how far it came: None is the end.

    `beyond` is what some of its lanes have further on, where others may have more.
    """

    found: list[Position]
    reached: Position | None
    beyond: Sequence[Position] = ()


class Edits(Protocol):
    """See the module."""

    def keyed_kinds(self) -> list[str]:
        """Each kind that has messages with keys."""

    def move(self, moves: Sequence[Move], now: datetime | None = None) -> set[int]:
        """Change when and where messages wait; returns the ids of those that were still as seen.

        Workers are woken after commit.
        """

    def cancel(self, seen: Sequence[Seen], now: datetime | None = None) -> set[int]:
        """End messages as cancelled; returns the ids of those that were still as seen."""

    def revive(self, revivals: Sequence[Revival], outcome: str, now: datetime | None = None) -> set[int]:
        """Take ended messages with this outcome out of the history and into the queue; returns their ids.

        What has another outcome by now stays, and so does a message whose key a live one has taken. Workers are woken
        after commit.
        """

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
        """Live messages that are due after a position and not after `until`, first the earliest.

        Finds up to `limit`, and looks at up to `budget` rows in each lane.
        """

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
        """Ended messages, first the latest, that ended before a position and not before `since`."""


def seen_columns(seen: Iterable[Seen]) -> dict[str, list[object]]:
    """By column, as an array of each."""
    rows = list(seen)
    return {name: [getattr(row, name) for row in rows] for name in Seen._fields}


def merged(walks: Collection[Walk], limit: int, *, backwards: bool = False) -> Walk:
    """Several walks as one: in order, and no further than the one that came least far."""
    pick = max if backwards else min
    ends = [walk.reached for walk in walks if walk.reached is not None]
    reached = pick(ends) if ends else None
    found = sorted((position for walk in walks for position in walk.found), reverse=backwards)
    within = [position for position in found if reached is None or pick(position, reached) == position]
    if len(within) > limit:
        return Walk(within[:limit], within[limit - 1])
    return Walk(within, reached, found[len(within) : limit])
