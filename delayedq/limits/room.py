"""One channel in one claim: how many of its messages may start, and when it is looked at again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from delayedq.limits.rates import TokenBucket, after, release_at, startable
from delayedq.limits.requests import ChannelState
from delayedq.limits.rules import ChannelDemand, Limit

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.limits.requests import ChannelView

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
