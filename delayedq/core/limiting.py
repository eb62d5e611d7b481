"""What a limit is, and its arithmetic: token buckets and fair turns. Pure functions on values.

A *token bucket* holds `burst` tokens and gains `count` of them in each `per`. Each start takes one; without one, a
message waits. What is stored of it is how many tokens it had when: a rate that is changed counts from then on, at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.core.sizes import OnFull, on_full

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

#: What rounding may take from a token.
_GRAIN = 1e-12
#: The same, in microseconds: an instant that is whole but for rounding is itself.
_ROUNDED = 1e-3


def _check_number(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is a whole number of at least 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` starts in each `per` (timedelta), and up to `burst` of them at once (None: `count`; 1: evenly spaced).

    Every start counts, also of a retry. Raises ValueError.

        Rate(5, per=timedelta(seconds=1))
    """

    count: int
    per: timedelta
    burst: int | None = None

    def __post_init__(self) -> None:
        _check_number("The count of a Rate", self.count)
        if not isinstance(self.per, timedelta) or self.per <= timedelta():
            raise ValueError(f"per of a Rate is a timedelta over zero, not {self.per!r}")
        if self.burst is not None:
            _check_number("burst of a Rate", self.burst)

    @property
    def size(self) -> int:
        """The most tokens that the bucket holds."""
        return self.count if self.burst is None else self.burst

    @property
    def interval(self) -> float:
        """Seconds in which one token comes back."""
        return self.per.total_seconds() / self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many messages may run at once (`concurrency`), and how many may start in a time (`rate`).

    size: how many there may be, waiting and in flight together. on_full: what becomes of an offer beyond that: "drop"
    (its outcome is DROPPED), "raise" (QueueFull) or "drop_oldest" (what has been due the longest is cancelled).
    name: that of a limit which several tasks share; None: it is the task's own. Raises ValueError.

        Limit(concurrency=2, rate=Rate(5, per=timedelta(seconds=1)))
        Limit(name="the-api", rate=Rate(5, per=timedelta(seconds=1)))
    """

    concurrency: int | None = None
    rate: Rate | None = None
    name: str | None = None
    size: int | None = None
    on_full: OnFull | str = OnFull.DROP

    def __post_init__(self) -> None:
        for what, number in (("concurrency", self.concurrency), ("size", self.size)):
            if number is not None:
                _check_number(f"{what} of a Limit", number)
        object.__setattr__(self, "on_full", on_full(self.on_full))
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise ValueError(f"rate of a Limit is a Rate, not {self.rate!r}")
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise ValueError(f"the name of a shared Limit is a text, not {self.name!r}")

    def as_json(self) -> dict[str, Any]:
        """What is stored of a limit that was set live."""
        rate = self.rate
        terms = None if rate is None else [rate.count, rate.per.total_seconds(), rate.burst]
        return {"concurrency": self.concurrency, "rate": terms, "size": self.size}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The reverse."""
        terms = stored.get("rate")
        rate = None if terms is None else Rate(terms[0], timedelta(seconds=terms[1]), terms[2])
        limit = cls(concurrency=stored.get("concurrency"), rate=rate, size=stored.get("size"))
        if stored.get("paused"):
            object.__setattr__(limit, "concurrency", 0)  # as no task can define it
        return limit

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused what it limits."""
        return self.concurrency == 0


class Bucket(NamedTuple):
    """How many tokens a bucket had at that moment."""

    tokens: float
    at: datetime


def tokens(rate: Rate, bucket: Bucket | None, now: datetime) -> float:
    """How many tokens there are now; a bucket that was never used (None) is full."""
    if bucket is None:
        return rate.size
    gained = max(0.0, (now - bucket.at).total_seconds() / rate.interval)
    return min(rate.size, bucket.tokens + gained)


def startable(rate: Rate, bucket: Bucket | None, now: datetime) -> int:
    """How many messages may start now."""
    return max(0, floor(tokens(rate, bucket, now) + _GRAIN))


def after(rate: Rate, bucket: Bucket | None, now: datetime, started: int) -> Bucket:
    """The bucket after so many starts."""
    moment = now if bucket is None else max(now, bucket.at)
    return Bucket(tokens(rate, bucket, now) - started, moment)


def release_at(rate: Rate, bucket: Bucket | None, now: datetime, wanted: float = 1.0) -> datetime:
    """The first moment at which there are `wanted` tokens (1: the next message may start)."""
    moment = now if bucket is None else max(now, bucket.at)
    missing = wanted - tokens(rate, bucket, now) - _GRAIN
    return moment if missing <= 0 else moment + timedelta(microseconds=ceil(missing * rate.interval * 1e6 - _ROUNDED))


def in_turns(room: int, most: Mapping[int, int]) -> dict[int, int]:
    """Deal `room` places, one to each in order, again and again; each takes at most what `most` allows it.

    >>> in_turns(5, {1: 3, 2: 1, 3: 9})
    {1: 2, 2: 1, 3: 2}
    """
    dealt = dict.fromkeys(most, 0)
    open_ = [name for name, bound in most.items() if bound > 0]
    while room > 0 and open_:
        share = max(1, min(room // len(open_), *(most[name] - dealt[name] for name in open_)))
        for name in open_:
            if room > 0:
                dealt[name] += share
                room -= share
        open_ = [name for name in open_ if dealt[name] < most[name]]
    return dealt
