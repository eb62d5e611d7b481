"""A model of messages with limits, in virtual time: which of them may start, and which must."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from delayedq.limits.rules import Limit, OnFull, Order, Rate
from tests.store.given import LEASE, NOW

KINDS, QUEUES = ["tests.one", "tests.other"], ["mail", "post"]
TERMS = ("concurrency", "rate", "size", "share")
#: What rounding may take from a token.
GRAIN = Fraction(1, 10**6)
#: The scope of a limit, and its terms. "kind" and "queue" stand for each task and each queue by itself.
LIMITS = {
    "channel concurrency": ("", Limit(concurrency=2)),
    "channel rate": ("", Limit(rate=Rate(2, LEASE / 30))),
    "channel size": ("", Limit(size=4)),
    "task concurrency": ("kind", Limit(concurrency=3)),
    "task rate": ("kind", Limit(rate=Rate(3, LEASE / 20, 1))),
    "task size": ("kind", Limit(size=9, on_full=OnFull.DROP_OLDEST)),
    "queue concurrency": ("queue", Limit(concurrency=3)),
    "queue rate": ("queue", Limit(rate=Rate(3, LEASE / 20, 2))),
    "queue size": ("queue", Limit(size=12, on_full=OnFull.DROP_OLDEST)),
    "shared concurrency": ("the-api", Limit(concurrency=4)),
    "shared rate": ("the-api", Limit(rate=Rate(4, LEASE / 12, 6))),
    "shared size": ("the-api", Limit(size=14, on_full=OnFull.RAISE)),
    "channel window": ("", Limit(rate=Rate(3, LEASE / 12, window=True))),
    "task rate of first attempts": ("kind", Limit(rate=Rate(3, LEASE / 20, 1, retries=False))),
    "channel order": ("", Limit(order=Order.STRICT)),
    "channel share": ("", Limit(share=2)),
}


@dataclass
class Known:
    """A message as the model knows it. `held_until`: None if no lease holds."""

    kind: str
    channel: str
    queue: str
    due: float
    held_until: float | None = None
    claimed: object = None
    is_replaced: bool = False
    #: In a channel with a strict order, it blocks the others until it has ended; if it was replaced or moved, it may.
    blocks: bool = False
    may_block: bool = False

    @property
    def home(self):
        return self.queue, self.kind, self.channel

    def holds(self, now):
        return self.held_until is not None and self.held_until > now


@dataclass
class Tokens:
    """A token bucket in exact fractions: at least and at most so many, as a channel without a rate may forget them."""

    least: Fraction
    most: Fraction
    at: Fraction
    #: When messages started, and how many of these had when the rate was changed.
    starts: list = field(default_factory=list)
    known: int = 0

    def at_moment(self, rate, now):
        if rate.window:
            return self._in_window(rate, now)
        gained = (Fraction(now) - self.at) * rate.count / Fraction(rate.per.total_seconds())
        return tuple(min(Fraction(rate.size), tokens + gained) for tokens in (self.least, self.most))

    def _in_window(self, rate, now):
        """What started by another rate may not be known to this one."""
        here = [number for number, start in enumerate(self.starts) if _window(rate, start) == _window(rate, now)]
        return rate.count - len(here), rate.count - sum(number >= self.known for number in here)

    def take(self, rate, now):
        least, most = self.at_moment(rate, now)
        self.starts.append(now)
        if rate.window:  # an ordinary bucket that follows is empty then
            least, most = Fraction(1), max(most, self.most)
        self.least, self.most, self.at = least - 1, most - 1, Fraction(now)


def _window(rate, now):
    return (Fraction(NOW.timestamp()) + Fraction(now)) // Fraction(rate.per.total_seconds())


@dataclass
class Model:
    names: tuple
    messages: dict = field(default_factory=dict)
    buckets: dict = field(default_factory=dict)
    #: What is set live, by scope and channel; and what is paused.
    live: dict = field(default_factory=dict)
    paused: set = field(default_factory=set)
    #: Attempts whose messages were taken from them, or went to another channel: they have their places there.
    orphans: list = field(default_factory=list)
    #: Until when a channel may not know that it has room, as nobody told.
    untold: dict = field(default_factory=dict)

    def defined(self, scope, channel=""):
        """What the code says of a scope; "": of each channel."""
        kinds = {"": "", **dict.fromkeys(KINDS, "kind"), **dict.fromkeys(QUEUES, "queue")}
        wanted = "" if channel else kinds.get(scope, scope)
        found = {}
        for limit in (limit for of, limit in map(LIMITS.get, self.names) if of == wanted):
            found |= {what: value for what in TERMS if (value := getattr(limit, what)) is not None}
            if limit.size:
                found["on_full"] = limit.on_full
            if limit.is_strict:
                found |= {"order": limit.order, "concurrency": 1}
        return Limit(**found)

    def scopes(self, one):
        """The limits of a message: the name of each, its terms now, and whether it is paused."""
        own = [(one.queue, one.channel), (one.kind, one.channel)]
        yield one.home, self.holding(*own), not self.paused.isdisjoint(own)
        for scope in ("the-api", one.kind, one.queue):
            yield scope, self.holding((scope, "")), (scope, "") in self.paused

    def holding(self, *names):
        """What was set live takes the place of what it names; of a channel, what a task says that of a queue."""
        defined, terms = self.defined(*names[0]), {}
        for name in names:
            terms |= self.live.get(name, {})
        return replace(defined, **(terms | ({"concurrency": 1} if defined.is_strict else {})))

    def within(self, scope):
        return [one for one in self.messages.values() if scope in {name for name, _, _ in self.scopes(one)}]

    def held(self, scope, now):
        """How many attempts run there, each where it started."""
        orphans = [one for one in self.orphans if scope in {name for name, _, _ in self.scopes(one)}]
        own = [one for one in self.within(scope) if not self.runs_elsewhere(one)]
        return sum(one.holds(now) for one in [*own, *orphans])

    def runs_elsewhere(self, one):
        """The message was replaced into another channel while it ran."""
        return any(orphan.claimed is one.claimed for orphan in self.orphans)

    def orphaned(self, one, **where):
        """Its attempt runs on, and holds its place where it started."""
        if not self.runs_elsewhere(one):
            self.orphans.append(replace(one, **where))

    def ended(self, claimed):
        self.orphans = [one for one in self.orphans if one.claimed is not claimed]

    def renewed(self, claimed, until):
        for one in self.orphans:
            if one.claimed is claimed:
                one.held_until = until

    def bucket(self, scope, rate, now):
        full = Fraction(rate.size)
        return self.buckets.setdefault(scope, Tokens(full, full, Fraction(now)))

    def may_start(self, one, now):
        for scope, limit, is_paused in self.scopes(one):
            full = limit.concurrency is not None and self.held(scope, now) >= limit.concurrency
            spent = limit.rate and self.bucket(scope, limit.rate, now).at_moment(limit.rate, now)[1] < 1 - Fraction(
                1, 10**6
            )
            if is_paused or full or spent:
                return False
        return not (self.is_strict and any(other.blocks for other in self.beside(one)))

    @property
    def is_strict(self):
        return self.defined("").is_strict

    def beside(self, one):
        """The other messages of its channel."""
        return [other for other in self.messages.values() if other is not one and other.home == one.home]

    def short(self, now):
        """Channels with less than their share, in which a message is due for which their own limits have room."""
        return {one.home for one in self.messages.values() if self._is_short(one, now)}

    def startable(self, now):
        """Channels in which a message may start now."""
        waiting = [one for one in self.messages.values() if one.due <= now and one.claimed is None]
        return {one.home for one in waiting if self.may_start(one, now)}

    def _is_short(self, one, now):
        name, limit, is_paused = next(self.scopes(one))
        held = self.held(name, now)
        has_room = held < min(limit.share or 0, limit.concurrency or held + 1) and not is_paused
        is_known = one.due <= now and one.claimed is None and now >= self.untold.get(one.home, 0.0)
        return has_room and is_known and self.tokens(name, limit.rate, now)[0] >= 1

    def must_start(self, one, now):
        enough = (self.tokens(scope, limit.rate, now)[0] >= 1 for scope, limit, _ in self.scopes(one))
        if self.is_strict and any(other.may_block for other in self.beside(one)):
            return False
        return self.may_start(one, now) and all(enough)

    def tokens(self, scope, rate, now):
        """At least and at most."""
        return (1, 1) if rate is None else self.bucket(scope, rate, now).at_moment(rate, now)
