"""The values that go into a claim from channels, and come out of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from delayedq.limits.rules import ChannelDemand, Limit, TokenBucket, after, release_at, startable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from delayedq.store.protocol import Claimed


class Rules(NamedTuple):
    """The limits of the channels of one task in one queue.

    `scopes`: those that all of them share, by the name of the queue, the task or the shared limit. `channel`: that of
    each channel by itself.
    """

    scopes: Sequence[tuple[str, Limit]] = ()
    channel: Limit | None = None

    @property
    def is_strict(self) -> bool:
        """Whether a message that is to be tried again blocks its channel."""
        return self.channel is not None and self.channel.is_strict


class ForeignRules(Rules):
    """Those of messages that only other workers claim: what runs of them counts in the limits that they share."""


class Lease(NamedTuple):
    """A lease, and until when it holds unless it is renewed; that may be past, if it was renewed beside its row."""

    token: int | None
    until: datetime | None


def nobody(queue: str, kind: str) -> None:
    """Nobody wants to know."""


class ChannelRequest(NamedTuple):
    """Up to `limit` messages of the groups (queue, kind) that `rules` has an answer for, but for those of `ForeignRules`.

    expired: whether places of leases that ran out may be given away; else what carries a lease runs. tell_unknown: is
    called with the queue and the kind of each group that is in turn, and that has no rules.
    """

    rules: Callable[[str, str], Rules | None]
    limit: int
    lease: timedelta
    worker: str
    token: int
    expired: bool = True
    tell_unknown: Callable[[str, str], object] = nobody


class ChannelClaim(NamedTuple):
    """What was claimed, and in how many seconds to ask again; None: when something was offered or ended."""

    claimed: list[Claimed]
    due_in: float | None = None


# What the store reads and writes of channels. These are rows of the models of the same names, without Django's cost.
class Notice(NamedTuple):
    """Look at this channel at that moment. `ended` attempts of it took `seconds` together."""

    channel_id: int
    group_id: int
    queue: str
    kind: str
    name: str
    at: datetime
    ended: int = 0
    seconds: float = 0.0


class Events(NamedTuple):
    """What settlements and offers say: the notices, and the messages (ids) that have no place any more."""

    notices: Collection[Notice]
    ended: Collection[int] = ()


class ServedGroup(NamedTuple):
    """The channels of one task in one queue. `is_ready`: at least one of them is in turn."""

    id: int
    queue: str
    kind: str
    turn: float
    is_ready: bool = True


class ScopeState(NamedTuple):
    """What is stored of a limit that channels share: how it is set live."""

    definition: str | None = None


class ClaimContext(NamedTuple):
    """What a claim reads before it looks at channels."""

    queues_paused: set[str]
    kinds_paused: set[str]
    groups: list[ServedGroup]
    scopes: dict[str, ScopeState]
    #: Channels for which a share was set live, as scope and name.
    shares: list[tuple[str, str]]
    #: The token buckets of the limits that channels share, by `bucket_name`.
    buckets: dict[str, TokenBucket]
    #: Groups (ids) with a limit that was set live for one of their channels. Asked of databases that deal themselves.
    named: set[int]
    #: As many notices were taken as one claim takes: there may be more.
    is_cut: bool = False


class ChannelState(NamedTuple):
    """A channel that has messages. It is in turn (`is_ready`), or rests until `ready_at`."""

    id: int
    name: str
    is_ready: bool
    ready_at: datetime
    turn: float
    seconds: float
    tokens: float | None
    tokens_at: datetime | None
    weight: float = 1.0


class ChannelQuery(NamedTuple):
    """Which channels of a group a claim visits: the first in turn, and the first of `others` (ids) that are.

    most: as many as take so many places, if each takes one; in_pairs: or two, where messages are short
    (`at_once`). room: how many messages it may start. is_strict: messages that are to be tried again block their
    channels. expired: see `ChannelRequest`.
    """

    group: ServedGroup
    most: int
    room: int
    is_strict: bool = False
    others: Collection[int] = ()
    expired: bool = True
    in_pairs: bool = False


class Running(NamedTuple):
    """How many messages run, and the first moment at which one of their leases ends.

    That of a message counts that waits here for its attempt in another channel; the attempt runs there.
    """

    number: int = 0
    until: datetime | None = None

    def and_until(self, until: datetime, number: int = 1) -> Running:
        """With another one; number: 0 if its attempt runs in another channel."""
        return Running(self.number + number, until if self.until is None else min(self.until, until))

    def not_before(self, moment: datetime) -> Running:
        """None of them ends before this moment."""
        return self if self.until is None else self._replace(until=max(self.until, moment))


class ChannelView(NamedTuple):
    """A channel in turn.

    heads: the ids of the first messages that are due in it, up to `asked`. next_due: if those are all, when the next of
    the others is.
    ended: messages with a place as if they ran, which do not. definition: the limit that was set live.
    blocked_until: when its first message, which blocks it, is due again; None: it is not blocked.
    """

    channel: ChannelState
    running: Running
    asked: int
    heads: list[int]
    next_due: datetime | None
    ended: list[int]
    definition: str | None = None
    blocked_until: datetime | None = None

    def with_ended(self, now: datetime) -> ChannelView:
        """What did not run, and whose place could not be given away, runs: it may be renewed at this moment."""
        running = self.running
        for _ in self.ended:
            running = running.and_until(now)
        return self._replace(running=running)


class Dealt(NamedTuple):
    """What a database has dealt and claimed by itself, in fair turn.

    chosen: the messages (ids), and the channels in which they stood (names); what is not `claimed` was locked, or has
    ended. is_more: it is worth to ask again at once. ended: as in `ChannelView`; then nothing else was done.
    """

    chosen: dict[int, str]
    claimed: list[Claimed]
    is_more: bool
    ended: list[int]


class Start(NamedTuple):
    """Messages to claim, and how their channels are left: `gone` ones have no message any more."""

    ids: list[int]
    channels: list[ChannelState]
    gone: list[int]
    group: ServedGroup


# One channel in one claim: how many of its messages may start, and when it is looked at again.


#: At most so many channels of each group are visited by one claim; and so many of those with a share that was set live.
MOST_VISITED = 512

#: A message that could not be claimed, as another transaction has locked it, is tried again after so long.
LOCKED = timedelta(seconds=0.05)

#: What a message takes in seconds as long as nothing is known of its channel, and the least that it counts: so shorter
#: ones count alike, and when they end, nothing is to be put right.
FIRST_SECONDS, LEAST_SECONDS = 0.01, 0.001

#: A claim of many messages gives two places at once to a channel whose messages take up to so long in seconds.
SHORT_SECONDS = 0.002


class HasTokens(Protocol):
    @property
    def tokens(self) -> float | None: ...
    @property
    def tokens_at(self) -> datetime | None: ...


class Room(NamedTuple):
    """How many messages may start; if none may, when that changes (None: when an attempt ends)."""

    places: int
    released_at: datetime | None = None


def cost(seconds: float) -> float:
    """Seconds that a start is charged with, if messages of its channel took so long."""
    return max(seconds or FIRST_SECONDS, LEAST_SECONDS)


def at_once(seconds: float, *, in_pairs: bool) -> int:
    """How many places are dealt together to a channel whose messages take so long; 0: nothing is known of it."""
    return 2 if in_pairs and 0 < seconds <= SHORT_SECONDS else 1


def bucket_of(state: HasTokens | None) -> TokenBucket | None:
    """The token bucket in a row; None: it is full."""
    if state is None or state.tokens is None or state.tokens_at is None:
        return None
    return TokenBucket(state.tokens, state.tokens_at)


def room_of(limit: Limit, running: int, bucket: TokenBucket | None, most: int, now: datetime) -> Room:
    """The room that a limit leaves, up to `most`."""
    places = most if limit.concurrency is None else min(most, limit.concurrency - running)
    if limit.rate is None or places <= 0:
        return Room(places)
    may_start = startable(limit.rate, bucket, now)
    return Room(min(places, may_start), release_at(limit.rate, bucket, now) if may_start <= 0 else None)


class Visit:
    """`wanted` of its messages shall start; `heads` are the first that are due, and one more if there is one.

    weight: that of the channel. step: how far each start takes its turn. at_once: how many start together.
    stays: it stays in turn also if its messages take all of its places. They may have ended when its turn comes again:
    then their end need not put it in turn.
    """

    __slots__ = ("at_once", "heads", "limit", "look", "stays", "step", "wanted", "weight")

    def __init__(self, look: ChannelView, limit: Limit, *, in_pairs: bool) -> None:
        self.look, self.limit, self.heads, self.wanted = look, limit, look.heads, 0
        self.weight = limit.weight_of(look.channel.name)
        self.step = cost(look.channel.seconds) / self.weight
        self.at_once = at_once(look.channel.seconds, in_pairs=in_pairs)
        self.stays = False

    @property
    def name(self) -> str:
        return self.look.channel.name

    @property
    def is_full(self) -> bool:
        """Whether all of its places were taken before this claim."""
        return self.limit.concurrency is not None and self.look.running.number >= self.limit.concurrency

    def waiting(self, most: int, now: datetime) -> ChannelDemand:
        """How many of its messages may start, and how far that takes its turn."""
        channel, running = self.look.channel, self.look.running.number
        if self.look.blocked_until is None:
            most = room_of(self.limit, running, bucket_of(channel), most, now).places
        else:
            most = 0
        return ChannelDemand(most, channel.turn, self.step, (self.limit.share or 0) - running, self.at_once)

    def after(self, started: int, counted: int, now: datetime, lease: timedelta) -> ChannelState | None:
        """The channel after so many were claimed: it stays in turn, or rests; None: nothing is left of it.

        counted: how many of them count for its rate. A channel that stays as it was is the same object.
        """
        channel = self.look.channel
        bucket = bucket_of(channel)
        if counted and self.limit.rate is not None:
            bucket = after(self.limit.rate, bucket, now, counted)
        until = self._rests_until(started, bucket, now, lease)
        if until is None and self._is_quiet(started):
            return None
        if until is None and not started and channel.weight == self.weight:
            return channel
        tokens, tokens_at = bucket or (None, None)
        turn = channel.turn + started * self.step
        rest = channel.seconds, tokens, tokens_at, self.weight
        return ChannelState(channel.id, channel.name, until is None, until or channel.ready_at, turn, *rest)

    def _is_quiet(self, started: int) -> bool:
        """Nothing more is due in it. If more than `asked` were, it stays in turn: the next claim finds out."""
        return len(self.heads) <= started and len(self.look.heads) < self.look.asked

    def _rests_until(
        self, started: int, bucket: TokenBucket | None, now: datetime, lease: timedelta
    ) -> datetime | None:
        """None: it is in turn; or, if no message waits, it is not needed any more."""
        running = self.look.running.number + started
        is_held = running > 0 or self.look.running.until is not None
        if self.look.blocked_until is not None:
            return min(self.look.blocked_until, self._ends_at(now, lease)) if is_held else self.look.blocked_until
        if self._is_quiet(started):
            if self.look.ended:
                return now + LOCKED
            moments = (self.look.next_due, self._ends_at(now, lease) if is_held else None)
            return min((one for one in moments if one is not None), default=None) or self._full_at(bucket, now)
        if started < self.wanted:
            return now + LOCKED
        room = room_of(self.limit, running, bucket, 1, now)
        if room.places > 0 or (self.stays and started and room.released_at is None):
            return None
        return room.released_at or self._ends_at(now, lease)

    def _ends_at(self, now: datetime, lease: timedelta) -> datetime:
        """When to look at it again, if nothing tells of the end of what runs in it: then the first lease has ended."""
        return max(self.look.running.until or now + lease, now + LOCKED)

    def _full_at(self, bucket: TokenBucket | None, now: datetime) -> datetime | None:
        """When its bucket is full; None: it is."""
        if self.limit.rate is None or bucket is None:
            return None
        full = release_at(self.limit.rate, bucket, now, self.limit.rate.size)
        return full if full > now else None
