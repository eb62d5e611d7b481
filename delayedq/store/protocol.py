"""The lease protocol: what every store promises, and the values that pass through it.

A worker *claims* due messages: the store writes a lease (a random token and a time until which it holds) into their
rows and charges an attempt. Every later write about that attempt (*renew*, *finish*, *retry*, *release*) is fenced by
id and token: it changes the row only while the row still carries that token. A worker that froze past its lease finds
its messages in the answer's `lost`, and has changed nothing. An expired lease is claimable as it stands; no reaper is
needed.

Offering a key again replaces its message and raises `generation`. If an attempt of the older generation is running, its
end does not end the message: the row is given back instead, with the new payload, time and a full set of attempts (the
answer's `superseded`). So a replacement is run once more, and never beside the run it replaces.

Time is the database's: no method reads the host's clock except on SQLite, where they are one. Every verb takes `now`
to let tests move time; production passes None.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from delayedq.store.edits import Edits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime, timedelta

    from delayedq.core.lifecycle import Ending
    from delayedq.store.presence import Presence


#: Stands between the name of a bare queue and the type of its payloads; the queue of a task has none. Workers leave
#: queues with it alone.
BARE = "|"


class OnConflict(StrEnum):
    """What an offer does when a live message has its key."""

    REPLACE = "replace"  #: payload and time
    KEEP = "keep"  #: nothing
    PRESERVE_TIME = "preserve_time"  #: payload only: a throttle
    EARLIEST = "earliest"  #: payload, and the earlier of both times
    LATEST = "latest"  #: payload, and the later of both times


class OfferOutcome(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    #: The live message was kept, or was offered with the same payload and time.
    IGNORED = "ignored"


class Offer(NamedTuple):
    """A message to be stored. `scheduled_at` None means now, on the database's clock."""

    queue: str
    kind: str
    payload: str
    key: str | None = None
    scheduled_at: datetime | None = None
    priority: int = 0
    max_attempts: int = 1
    metadata: str | None = None


class Offered(NamedTuple):
    """What became of an offer. `id` is None only if an IGNORED message ended in the same instant."""

    outcome: OfferOutcome
    id: int | None


class Lane(NamedTuple):
    """One queue at one priority, and the time before which nothing claimable is expected in it (None: from the start).

    The floor is a hint that saves walking over what is dead or leased; `look` finds what it would miss.
    """

    queue: str
    priority: int
    floor: datetime | None = None


class Sight(NamedTuple):
    """What `look` saw first in a lane: when it is due, and in how many seconds (negative: due since)."""

    queue: str
    priority: int
    first_at: datetime
    due_in: float


class Claimed(NamedTuple):
    """One attempt of one message, as claimed. `id`, `token` and `generation` fence everything written about it."""

    id: int
    token: int
    generation: int
    queue: str
    kind: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    scheduled_at: datetime
    scheduled_at_initially: datetime
    created_at: datetime
    payload: str
    metadata: str | None
    errors: str | None


class Finish(NamedTuple):
    """Delete the message and write its history row.

    `started` and `finished` are seconds before the moment the store is called; `started` None: the task never ran, and
    the history counts no attempt for this claim. `errors` replaces the list the message carried.
    """

    claimed: Claimed
    ending: Ending
    started: float | None
    finished: float
    result: str | None = None
    errors: str | None = None


class GiveBack(NamedTuple):
    """Return the message to the queue: a retry, a snooze, or a release of what was not started.

    It becomes due `delay` seconds from now, or at `until`, or keeps its time if both are None. `charged` False takes
    back the attempt that the claim charged. `started` None: the task never ran. `errors` and `metadata` replace what
    the message carried, unless they are None.
    """

    claimed: Claimed
    charged: bool
    started: float | None = None
    finished: float = 0.0
    delay: float | None = None
    until: datetime | None = None
    errors: str | None = None
    metadata: str | None = None


class Discard(NamedTuple):
    """Delete the message and leave no history, also if it was replaced meanwhile and is given back instead."""

    claimed: Claimed


Transition = Finish | GiveBack | Discard


class Condition(NamedTuple):
    """The payload, which is JSON, has this value at the end of this path of names (ASCII identifiers).

    `value` is canonical JSON, as `delayedq.core.serialization` writes it; equal values have equal texts.
    """

    path: tuple[str, ...]
    value: str


class Settled(NamedTuple):
    """The ids for which a transition found something else than its own lease.

    `lost`: another claim, or nobody, holds the message; the transition changed nothing.
    `superseded`: the message was replaced while the attempt ran; it was given back to run once more, and the ended
    attempt has a history row of its own.
    `busy`: somebody's open transaction has locked the message; nothing was changed, and it is to be settled later.
    """

    lost: frozenset[int] = frozenset()
    superseded: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()


class Tick(NamedTuple):
    claimed: list[Claimed]
    settled: Settled


class Listener(Protocol):
    """Tells that somebody else changed the queue. It has a connection of its own, and one thread uses it."""

    #: Seconds between two questions; None if `fileno` becomes readable instead.
    interval: float | None

    def fileno(self) -> int:
        """The descriptor to wait for, where `interval` is None."""

    def heard(self) -> bool:
        """Was there a change since the last call? Raises django.db.Error if the connection is lost."""

    def close(self) -> None: ...


class Flaw(NamedTuple):
    """A finding for the system checks."""

    id: str
    problem: str
    hint: str


class Store(Edits, Protocol):
    """A database that holds the queue. One object per database alias; threads share it, connections are theirs."""

    alias: str

    def flaws(self, *, connect: bool) -> list[Flaw]:
        """What is wrong with the settings of this database; `connect`: also what only the database knows."""

    def now(self) -> datetime:
        """The moment on the clock by which this store judges what is due."""

    def offer(self, offer: Offer, on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None) -> Offered:
        """Store one message in one statement, within the caller's transaction if there is one."""

    def offer_many(
        self, offers: Iterable[Offer], on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None
    ) -> list[Offered]:
        """Store all or none; the outcomes are in the order of the offers. A key may occur more than once."""

    def offer_each(self, offers: Sequence[tuple[Offer, OnConflict]], now: datetime | None = None) -> list[Offered]:
        """`offer_many`, but each offer has its own policy."""

    def notify(self) -> None:
        """Wake idle workers, at once or not at all; offers do so after commit."""

    def listener(self) -> Listener: ...

    def look(self, queues: Collection[str] | None = None, now: datetime | None = None) -> list[Sight]:
        """The first claimable or future message of each lane (of these queues; None: all), unless its queue is paused.

        Walks over what is dead or leased in front of it, so it may take long.
        """

    def lanes(self) -> list[Lane]:
        """All that hold a message, whatever its state, also of paused queues."""

    def paused(self) -> set[str]:
        """The queues that are paused: what looks and glances pass over, and what no claim takes from."""

    def attend(self, workers: Sequence[Presence], now: datetime | None = None) -> None:
        """These worker processes live: one statement, one row for each."""

    def leave(self, names: Collection[str]) -> None:
        """These worker processes have ended."""

    def forget(self, silent_for: timedelta, now: datetime | None = None) -> None:
        """Drop the rows of worker processes of which nobody has heard for so long."""

    def glance(self, lanes: Sequence[Lane], now: datetime | None = None) -> list[Sight]:
        """The same for known lanes, from their floors on: always short."""

    def claim(
        self, lanes: Sequence[Lane], limit: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> list[Claimed]:
        """Lease up to `limit` due messages, lane by lane in the given order, in each by due time and id.

        None of a queue that is paused.
        """

    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> list[Claimed]:
        """`claim`, but only messages that meet all conditions; walks over every due message that does not.

        Raises django.db.DataError if it meets a payload that is no JSON, on stores that can't pass over it.
        """

    def claim_unchanged(
        self, id_: int, generation: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> Claimed | None:
        """Lease this one message, due or not; None if somebody holds it, or it ended or was replaced since."""

    def settle(self, transitions: Sequence[Transition], worker: str, now: datetime | None = None) -> Settled:
        """Carry out the transitions in one transaction, each fenced by its lease."""

    def tick(
        self,
        transitions: Sequence[Transition],
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> Tick:
        """`settle`, then `claim`; in one trip where that is possible. What can't be settled loses no claim."""

    def renew(
        self, held: Sequence[tuple[int, int]], lease: timedelta, now: datetime | None = None
    ) -> set[tuple[int, int]]:
        """Extend the leases of (id, token) pairs, never shortening one; returns the pairs whose lease was lost."""

    def release(self, held: Sequence[tuple[int, int]]) -> None:
        """Give back messages (id, token) that were never started, without charge."""

    def unschedule(self, kind: str, key: str, now: datetime | None = None) -> bool:
        """End the live message of this key as cancelled, also while it runs; False if there is none.

        Raises InvalidKey.
        """

    def drop(self, queue: str, key: str | None = None, *, recorded: bool = True, now: datetime | None = None) -> int:
        """End the live messages of a bare queue (of one key, or None: all) as cancelled, also while they run.

        The kind of its messages is the name of the queue. Returns how many there were; `recorded` False leaves no
        history. Raises InvalidKey.
        """

    def withdraw(self, ids: Iterable[int], errors: str | None = None, now: datetime | None = None) -> set[int]:
        """End as cancelled those of these messages that no attempt has begun; returns their ids.

        What runs, waits for another attempt, or is locked by somebody's transaction stays as it is. `errors` goes into
        their history.
        """

    def finished(self, ids: Iterable[int]) -> set[int]:
        """Which of these ids have a history row."""

    def prune(self, older_than: timedelta, limit: int, now: datetime | None = None) -> int:
        """Delete up to `limit` history rows that ended longer ago; returns how many.

        Dead letters stay, and so does what finished before the cutoff of an open archive batch.
        """
