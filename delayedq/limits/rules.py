"""Fair turns: which channels get the places that there are. Pure functions on values.

The *turn* of a channel is the seconds of work that it had, divided by its weight. A place goes to the lowest turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.core.bounds import NAME_LENGTH, check_channel, is_storable
from delayedq.core.metadata import own, with_own
from delayedq.sql.priority import METADATA_KEY

# Channels: sub-queues of the messages of one task, and how a message says which one it is in.
#
# A message with a channel waits in a *limited lane* (`sql.priority`); its channel travels in its metadata.


#: The urgency (negated priority) of a message that was claimed and has not ended, if its channel has a strict order.
HEAD = -10_000

#: How metadata begin that name a channel and nothing else.
_ALONE, _QUOTES = '{"' + METADATA_KEY + '":"', 4


def with_channel(metadata: str | None, channel: str) -> str:
    """The metadata (JSON) of a message in this channel."""
    return str(with_own(metadata, {METADATA_KEY: channel}))


def has_channel_only(metadata: str) -> bool:
    """Whether it names a channel and says nothing else; False where only a parser can tell.

    >>> has_channel_only(with_channel(None, "acme")), has_channel_only(with_channel('{"a":1}', "acme"))
    (True, False)
    """
    return metadata.startswith(_ALONE) and metadata.count('"') == _QUOTES and "\\" not in metadata


def channel_of(metadata: str | None) -> str | None:
    """The channel in the metadata of a message; None if it has none."""
    if metadata and has_channel_only(metadata):
        return metadata[len(_ALONE) : -2]
    channel = own(metadata, METADATA_KEY)
    return None if channel is None else str(channel)


def group_id(queue: str, kind: str) -> int:
    """The id of the channels of one task in one queue."""
    return _digest(queue, kind)


def channel_id(queue: str, kind: str, channel: str) -> int:
    """The id of a channel, which every process finds out alike without asking the database."""
    return _digest(queue, kind, channel)


def scope_id(scope: str) -> int:
    """The id of a queue, a task or a shared limit, in which the messages of several channels are counted."""
    return _digest(scope)


def bucket_name(scope: str) -> str:
    """Under which name the token bucket of a scope is stored: in a row that is not the one of what is set live.

    So no claim waits for a transaction that sets a limit.
    """
    return str(scope_id(scope))


def _digest(*names: str) -> int:
    """63 bits: among a million channels, two share an id with a probability of 0.00000005."""
    texts = json.dumps(names).encode()
    return int.from_bytes(blake2b(texts, digest_size=8).digest()) >> 1


# What a size is: how many messages there may be, waiting and in flight together, and what happens to the next one.


class OnFull(StrEnum):
    """What becomes of an offer that finds no room."""

    DROP = "drop"  #: it is not stored: its outcome is DROPPED
    RAISE = "raise"  #: QueueFull is raised, and nothing is stored
    DROP_OLDEST = "drop_oldest"  #: the message that has been due the longest is cancelled, and this one stored


class Size(NamedTuple):
    """At most `most` messages.

    scope: the name of the queue, the task or the shared limit that counts them; "": each channel does by itself.
    """

    scope: str
    most: int
    on_full: OnFull


def on_full(value: object) -> OnFull:
    """Raises ValueError for what is none."""
    try:
        return OnFull(value)  # type: ignore[arg-type]  # that is what it checks
    except ValueError:
        choices = ", ".join(repr(one.value) for one in OnFull)
        raise ValueError(f"on_full of a Limit is one of {choices}, not {value!r}") from None


# What a limit is.


#: The largest number in a limit, which all databases can store.
MOST = 2**31 - 1

#: The longest time of a rate, and the latest that a release is told ahead: what is then not there yet is told again.
FARTHEST = timedelta(days=36_500)

#: The least and the largest weight of a channel.
LIGHTEST, HEAVIEST = 0.001, 1_000


class Order(StrEnum):
    """Within a channel: messages that wait to be tried again let others pass ("fair"), or block them ("strict")."""

    FAIR = "fair"
    STRICT = "strict"


#: What errors show.
A_RATE = "Rate(5, per=timedelta(minutes=1))"

#: What to do instead of a number that lets nothing start, or everything.
_CURES = {
    "concurrency": "; None is no limit, and delayedq.limits.pause() lets nothing start",
    "size": "; None is no limit",
    "share": "; None is no share",
}


def _check_number(name: str, value: object, cure: str = "") -> None:
    if type(value) is not int or not 1 <= value <= MOST:
        raise ValueError(f"{name} is a whole number of at least 1 and at most {MOST:,}, not {value!r}{cure}")


def _call(name: str, given: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """What was written, for an error."""
    return f"{name}({', '.join([*map(repr, given), *(f'{key}={value!r}' for key, value in options.items())])})"


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= NAME_LENGTH and is_storable(name)


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` starts in each `per` (timedelta), and up to `burst` of them at once (None: `count`; 1: evenly spaced).

    window: True: allow `count` starts at any time within each window of length `per` by the clock (UTC), instead of
    spreading them; there is no burst. retries: False: only first attempts count; a retry waits for room, but takes
    none. Raises ValueError.

        Rate(5, per=timedelta(seconds=1))
        Rate(1_000, per=timedelta(hours=1), window=True)
    """

    count: int
    per: timedelta
    burst: int | None = None
    window: bool = field(default=False, kw_only=True)
    retries: bool = field(default=True, kw_only=True)

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __new__(cls, *given, **options):
            """Names the cure where Python would name what is missing. A copy is made without arguments."""
            is_timed = "per" in options or given[1:] or not (given or options)
            if options.keys() - cls.__slots__ or not is_timed:
                raise TypeError(f"A Rate is a number and a time, as in {A_RATE}, not {_call('Rate', given, options)}.")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        _check_number("The count of a Rate", self.count)
        if not isinstance(self.per, timedelta) or not timedelta() < self.per <= FARTHEST:
            raise ValueError(
                f"per of a Rate is a timedelta over zero, at most {FARTHEST.days:,} days, not {self.per!r}"
            )
        if self.burst is not None:
            _check_number("burst of a Rate", self.burst)
            if self.window:
                raise ValueError("burst has no effect on a Rate with a window: all of its starts may come at once")
        for name in ("window", "retries"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} of a Rate is True or False, not {getattr(self, name)!r}")

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
    """How many messages may run at once (`concurrency`), and how many may start within a time (`rate`).

    size: how many messages may exist, waiting and in flight together. on_full: what happens to further offers: "drop"
    (the outcome is DROPPED), "raise" (QueueFull) or "drop_oldest" (the message that has been due longest is cancelled).
    name: the name of a limit that several tasks share; None: the limit belongs to one task.

    Options of channels, which need a limit without a name: weight: how many seconds of work a channel gets for each
    second of a channel with weight 1; or a dict of weights by channel (others: 1). share: how many messages of a
    channel may run before other channels get more than their share. order: "strict": one message at a time; a message
    that waits for another attempt blocks its channel until it has ended. Raises ValueError.

        Limit(concurrency=2, rate=Rate(5, per=timedelta(seconds=1)))
        Limit(name="the-api", rate=Rate(5, per=timedelta(seconds=1)))
        Limit(order="strict", weight={"acme": 3})
    """

    concurrency: int | None = None
    rate: Rate | None = None
    name: str | None = None
    size: int | None = None
    on_full: OnFull | str = OnFull.DROP
    weight: float | Mapping[str, float] = field(default=1, hash=False)
    share: int | None = None
    order: Order | str = Order.FAIR

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __new__(cls, *given, **options):
            """Names the options where Python would count the arguments."""
            if given or options.keys() - cls.__slots__:
                raise TypeError(
                    f"A Limit says what it limits, as in Limit(concurrency=5) or Limit(rate={A_RATE}), not "
                    f"{_call('Limit', given, options)}. Its options are {', '.join(cls.__slots__)}."
                )
            return object.__new__(cls)

    def __post_init__(self) -> None:
        for what, number in (("concurrency", self.concurrency), ("size", self.size), ("share", self.share)):
            if number is not None:
                _check_number(f"{what} of a Limit", number, _CURES[what])
        self._check_turns()
        object.__setattr__(self, "on_full", on_full(self.on_full))
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise ValueError(f"rate of a Limit is a Rate, such as {A_RATE}, not {self.rate!r}")
        if self.name is not None and not _is_name(self.name):
            raise ValueError(
                f"the name of a shared Limit is a text of 1 to {NAME_LENGTH} characters, not {repr(self.name)[:80]}"
            )
        if self.name is not None and self.is_of_channels:
            raise ValueError(f"weight, share and order apply to channels, and the shared Limit {self.name!r} has none")

    def _check_turns(self) -> None:
        weights = dict(self.weight) if isinstance(self.weight, Mapping) else {"": self.weight}
        for channel in weights:
            check_channel(channel)
        for weight in weights.values():
            if type(weight) not in {int, float} or not LIGHTEST <= weight <= HEAVIEST:
                raise ValueError(f"weight of a Limit is from {LIGHTEST} to {HEAVIEST:,}, not {weight!r}")
        if isinstance(self.weight, Mapping):
            object.__setattr__(self, "weight", weights)
        if self.order not in list(Order):
            raise ValueError(f"order of a Limit is one of {', '.join(Order)}, not {self.order!r}")
        object.__setattr__(self, "order", Order(self.order))
        if self.is_strict:
            if self.concurrency not in {None, 1}:
                raise ValueError(f"a Limit with order='strict' has a concurrency of 1, not {self.concurrency}")
            object.__setattr__(self, "concurrency", 1)

    @property
    def is_strict(self) -> bool:
        """Whether a message that is to be tried again blocks its channel."""
        return self.order is Order.STRICT

    @property
    def is_of_channels(self) -> bool:
        """Whether it says something that only holds for channels by themselves."""
        return self.weight != 1 or self.share is not None or self.is_strict

    def weight_of(self, channel: str) -> float:
        """The weight of this channel."""
        weight = self.weight  # asked for each channel of a claim: a check against Mapping takes several times as long
        return weight if isinstance(weight, int | float) else weight.get(channel, 1)

    def as_json(self) -> dict[str, Any]:
        """What can be set live of it, as it is stored. Its order is what the code says."""
        rate, weight = self.rate, self.weight
        terms = None if rate is None else [rate.count, rate.per.total_seconds(), rate.burst, rate.window, rate.retries]
        return {
            "concurrency": self.concurrency, "rate": terms, "size": self.size, "weight": weight, "share": self.share,
        }  # fmt: skip

    def overridden(self, stored: Mapping[str, Any]) -> Limit:
        """With what was set live; what `stored` does not name stays as it is, and so does the order."""
        given = {name: stored[name] for name in ("concurrency", "size", "weight", "share") if name in stored}
        if "rate" in stored:
            given["rate"] = _rate_in(stored["rate"])
        limit = replace(self, **(given | ({"concurrency": 1} if self.is_strict else {})))
        if stored.get("paused"):
            object.__setattr__(limit, "concurrency", 0)  # as no task can define it
        return limit

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused what it limits."""
        return self.concurrency == 0


def _rate_in(terms: list[Any] | None) -> Rate | None:
    if terms is None:
        return None
    count, per, burst, window, retries = terms
    return Rate(count, timedelta(seconds=per), burst, window=window, retries=retries)


# Turns


class ChannelDemand(NamedTuple):
    """What waits in a channel: up to `most` places can be used.

    turn: where it is now. step: how much further each place takes it. owed: so many places come before those of others.
    at_once: so many places are dealt to it together.
    """

    most: int
    turn: float = 0.0
    step: float = 1.0
    owed: int = 0
    at_once: int = 1


def deal(room: int, waiting: Mapping[int, ChannelDemand]) -> dict[int, int]:
    """Deal `room` places: first to those who are owed some, then to all; each time one (`at_once`) to the lowest turn.

    >>> deal(5, {1: ChannelDemand(3), 2: ChannelDemand(1), 3: ChannelDemand(9)})
    {1: 2, 2: 1, 3: 2}
    >>> deal(6, {1: ChannelDemand(9, step=1.0), 2: ChannelDemand(9, step=0.5)})
    {1: 2, 2: 4}
    >>> deal(3, {1: ChannelDemand(9), 2: ChannelDemand(9, turn=100.0, owed=2)})
    {1: 1, 2: 2}
    >>> deal(5, {1: ChannelDemand(9, at_once=2), 2: ChannelDemand(9)})
    {1: 3, 2: 2}
    """
    dealt = dict.fromkeys(waiting, 0)
    line = [(one.owed <= 0, one.turn, rank, id_) for rank, (id_, one) in enumerate(waiting.items()) if one.most > 0]
    heapify(line)
    while line and room > 0:
        is_served, turn, rank, id_ = line[0]
        one = waiting[id_]
        most = one.most if is_served else min(one.most, one.owed)
        number = min(one.at_once, most - dealt[id_], room)
        dealt[id_] += number
        room -= number
        if dealt[id_] < one.most:
            heapreplace(line, (dealt[id_] >= one.owed, turn + number * one.step, rank, id_))
        else:
            heappop(line)
    return dealt
