"""One channel in one claim: how many of its messages may start, and when it is looked at again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from delayedq.core.limiting import Bucket, Limit, after, release_at, startable
from delayedq.store.channels.notices import cost

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.models import Channel, ChannelGroup
    from delayedq.store.channels.places import Running

#: A message that could not be claimed, as another transaction has locked it, is tried again after so long.
LOCKED = timedelta(seconds=0.05)


class HasTokens(Protocol):
    tokens: float | None
    tokens_at: datetime | None


class Room(NamedTuple):
    """How many messages may start; if none may, when that changes (None: when an attempt ends)."""

    places: int
    released_at: datetime | None = None


def bucket_of(state: HasTokens | None) -> Bucket | None:
    """The token bucket in a row; None: it is full."""
    if state is None or state.tokens is None or state.tokens_at is None:
        return None
    return Bucket(state.tokens, state.tokens_at)


def room_of(limit: Limit, running: int, bucket: Bucket | None, most: int, now: datetime) -> Room:
    """The room that a limit leaves, up to `most`."""
    places = most if limit.concurrency is None else min(most, limit.concurrency - running)
    if limit.rate is None or places <= 0:
        return Room(places)
    may_start = startable(limit.rate, bucket, now)
    return Room(min(places, may_start), release_at(limit.rate, bucket, now) if may_start <= 0 else None)


@dataclass(slots=True)
class Visit:
    """`running` before the claim; `wanted` of its messages shall start; `heads` are the first, and one more."""

    channel: Channel
    limit: Limit
    running: Running
    wanted: int = 0
    heads: list[int] = field(default_factory=list)
    started: int = 0

    def room(self, most: int, now: datetime) -> Room:
        return room_of(self.limit, self.running.number + self.started, bucket_of(self.channel), most, now)

    def start(self, group: ChannelGroup, started: int, now: datetime) -> None:
        """So many of its messages were claimed."""
        self.started = started
        if started:
            group.turn = max(group.turn, self.channel.turn)
            self.channel.turn += started * cost(self.channel)
        if started and self.limit.rate is not None:
            bucket = after(self.limit.rate, bucket_of(self.channel), now, started)
            self.channel.tokens, self.channel.tokens_at = bucket

    @property
    def has_more(self) -> bool:
        """Whether a message that is due still waits."""
        return len(self.heads) > self.started

    def rest(self, now: datetime, lease: timedelta) -> None:
        """It stays in turn, or rests. If nothing in it is due, `rest_until` says for how long."""
        room = self.room(1, now)
        self.channel.is_ready = self.has_more and self.started == self.wanted and room.places > 0
        if self.started < self.wanted:
            self.channel.ready_at = now + LOCKED
        elif room.places <= 0:
            self.channel.ready_at = room.released_at or self.ends_at(now, lease)

    def ends_at(self, now: datetime, lease: timedelta) -> datetime:
        """When to look at it again, if nothing tells of the end of what runs in it: then the first lease has ended."""
        until = now + lease if self.running.until is None else self.running.until
        return max(until, now + LOCKED)

    def is_needed_until(self, now: datetime) -> datetime | None:
        """When its bucket is full, if it has no message any more; None: it is."""
        bucket = bucket_of(self.channel)
        if self.limit.rate is None or bucket is None:
            return None
        full = release_at(self.limit.rate, bucket, now, self.limit.rate.size)
        return full if full > now else None
