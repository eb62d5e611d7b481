"""The lease protocol: what every store promises, and the values that pass through it.

A worker *claims* due messages: the store writes a lease (a random token and a time until which it holds) into their
rows and charges an attempt. Every later write about that attempt is fenced by id and token (*renew*, *release*) or by
id, token and generation (*settle*): it changes the row only while the row still carries them. An expired lease is
claimable as it stands; no reaper is needed. A worker that froze past its lease and settles late is accepted if no other
claim took the message meanwhile: the row still has its token. Else it finds the message in the answer's `lost`, and has
changed nothing. In a channel, the claim that gives its place to another message takes the expired lease away.

Offering a key again replaces its message and raises `generation`. If an attempt of the older generation is running, its
end does not end the message: the row is given back instead, with the new payload, time and a full set of attempts (the
answer's `superseded`). So a replacement is run once more, and never beside the run it replaces.

A message that was claimed becomes claimable again in four ways:

                    by whom             its time            the attempt       what is stored of it
    GiveBack        settle              as told, or kept    as told           its errors
    rearm           settle, if it was   the replacement's   not counted (0)   a `superseded` history row, if it had
                    replaced                                                  started and is no Discard
    release         the lease keeper    kept                not counted       nothing
    expiry          (no write)          kept                counted           nothing

Time is the database's: no verb judges by the host's clock except on SQLite, where they are one. Only whether an offer
is due so early that idle workers must be woken is estimated by it (`offers.may_be_due_soon`). `store.at(moment)` is
the same store, which judges at that moment; tests move time with it.

Here are the values that pass through the protocol; `base.Store` has its verbs, and `operator.OperatorStore` those of an
operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Never

from delayedq.core.errors import last_error
from delayedq.core.lifecycle import FinalOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime, timedelta

    from delayedq.core.errors import LastError
    from delayedq.limits.rules import Size


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

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"on_conflict is one of {', '.join(map(repr, map(str, cls)))}, not {value!r}.")


#: What takes a policy takes its name too.
type Conflict = OnConflict | Literal["replace", "keep", "preserve_time", "earliest", "latest"]


class OfferOutcome(StrEnum):
    """What an offer did: created a message, replaced the live one of its key, or neither."""

    CREATED = "created"
    UPDATED = "updated"
    #: The live message was kept, or was offered with the same payload and time.
    IGNORED = "ignored"
    #: Nothing was stored: a limit of the message has reached its size (`Limit(size=...)`).
    DROPPED = "dropped"


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
    #: The channel in which it waits for its turn; None: it has none, and no limit.
    channel: str | None = None
    #: How many messages its limits allow; () : any number.
    sizes: tuple[Size, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether no feature takes part in storing it (`store.feature`)."""
        return self.channel is None and not self.sizes


class Offered(NamedTuple):
    """What became of an offer. `id` is None if it was DROPPED, or if an IGNORED message ended in the same instant.

    `created_at` is that of the stored row, where the statement of a single offer returns it (not on MySQL). `size`: how
    many messages there are now in that limit of the message which has the least room; None: it has none with a size.
    """

    outcome: OfferOutcome
    id: int | None
    created_at: datetime | None = None
    size: int | None = None


class Lane(NamedTuple):
    """One queue at one priority, and the time before which nothing claimable is expected in it (None: from the start).

    The watermark is a hint that saves walking over what is dead or leased; `scan` finds what it would miss.
    """

    queue: str
    priority: int
    watermark: datetime | None = None


def with_watermarks(lanes: Iterable[Lane], known: Iterable[Lane], queues: Collection[str] | None) -> list[Lane]:
    """These lanes, as far as they are of these queues (None: all), those that are known with their watermarks."""
    of = {(lane.queue, lane.priority): lane for lane in known}
    return [of.get((lane.queue, lane.priority), lane) for lane in lanes if queues is None or lane.queue in queues]


class ClaimRequest(NamedTuple):
    """What a claim asks for: up to `limit` messages of these lanes, and the lease that it gives them.

    `token`: that of the claim, if it is chosen already. `expired` False: no message that was claimed before.
    """

    lanes: Sequence[Lane]
    limit: int
    lease: timedelta
    worker: str
    token: int | None = None
    expired: bool = True


class LaneHead(NamedTuple):
    """What `scan` saw first in a lane: when it is due, and in how many seconds (negative: due since)."""

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
    outcome: FinalOutcome
    started: float | None
    finished: float
    result: str | None = None
    errors: str | None = None
    #: What the same transaction offers, if it ends the message.
    follow_ups: tuple[Offer, ...] = ()
    #: How long the result is kept; None: as long as the history.
    result_retention: timedelta | None = None

    @property
    def last_error(self) -> LastError | tuple[None, None]:
        """What tells a dead letter from others; (None, None) for any other end."""
        if self.outcome is not FinalOutcome.FAILED:
            return None, None
        return last_error(self.errors or self.claimed.errors)


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
    #: What the same transaction offers, if it gives the message back.
    follow_ups: tuple[Offer, ...] = ()


class Discard(NamedTuple):
    """Delete the message and leave no history, also if it was replaced meanwhile and is given back instead."""

    claimed: Claimed


Transition = Finish | GiveBack | Discard


class Settled(NamedTuple):
    """The ids for which a transition found something else than its own lease.

    `lost`: another claim holds the message, or it has no lease or no row any more; the transition changed nothing.
    `superseded`: the message was replaced while the attempt ran; it was given back to run once more, and the ended
    attempt has a history row of its own if it had started and the transition is no Discard.
    `busy`: another open transaction has locked the message; nothing was changed, and it is to be settled later.

    `offered`: steps of flows were released, or a flow failed and is followed, so there are new messages.
    """

    lost: frozenset[int] = frozenset()
    superseded: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    offered: bool = False

    @property
    def untouched(self) -> frozenset[int]:
        """The ids of those whose transitions were not carried out as they are."""
        return self.lost | self.busy | self.superseded

    def with_(self, other: Settled) -> Settled:
        """Both together."""
        lost, superseded, busy = self.lost | other.lost, self.superseded | other.superseded, self.busy | other.busy
        return Settled(lost, superseded, busy, self.offered or other.offered)


class Renewed(NamedTuple):
    """The (id, token) pairs whose leases were not renewed.

    `lost`: another claim, or nobody, holds the message.
    `busy`: somebody's open transaction has locked the message, and the lease had run out before it could be renewed, or
    the caller is within a transaction. Nobody else may have claimed it yet: it is to be renewed again soon.
    """

    lost: frozenset[tuple[int, int]] = frozenset()
    busy: frozenset[tuple[int, int]] = frozenset()


class Released(NamedTuple):
    """The (id, token) pairs that were not released.

    `lost`: another claim, or nobody, holds the message: there is nothing to release.
    `busy`: somebody's open transaction has locked the message; nothing was changed, and it is to be released later.
    """

    lost: frozenset[tuple[int, int]] = frozenset()
    busy: frozenset[tuple[int, int]] = frozenset()


class SettledAndClaimed(NamedTuple):
    claimed: list[Claimed]
    settled: Settled


class Flaw(NamedTuple):
    """A finding for the system checks."""

    id: str
    problem: str
    hint: str


class PartitionStep(StrEnum):
    """What was done to make the history a table of partitions, or to keep it one."""

    BEGUN = "begun"
    #: It had begun too long ago.
    BEGUN_AGAIN = "begun again"
    CHECKED = "checked"
    PARTITIONED = "partitioned"
    CREATED = "created"
    DROPPED = "dropped"
    #: It is one table again.
    UNITED = "united"


class PartitionChange(NamedTuple):
    """One step, and the table that it is about."""

    step: PartitionStep
    name: str
