"""Whatever happens to messages with limits, in virtual time, against a model of them; Hypothesis chooses what.

At no moment more are held, or were started, than each limit allows; and what is due and not claimed waits for a limit
that leaves no room. Each limit by itself, and each pair. DELAYEDQ_TEST_EXAMPLES=100 tries as many others, at random.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from delayedq.core.limiting import Limit, Rate
from delayedq.models import Message
from delayedq.store import store_for
from delayedq.store.channels.requests import Rules
from tests.router import ChosenDatabase
from tests.store.channels import in_channel
from tests.store.given import LEASE, NOW, at, fail, put_back, retry, succeed

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 4),
    stateful_step_count=30,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
KINDS, CHANNELS = ["tests.one", "tests.other"], ["a", "b", "c"]
STEP = 0.25
#: The scope of a limit, and its terms. "kind" stands for the task of each kind by itself.
LIMITS = {
    "channel concurrency": ("", Limit(concurrency=2)),
    "channel rate": ("", Limit(rate=Rate(2, LEASE / 30))),
    "task concurrency": ("kind", Limit(concurrency=3)),
    "task rate": ("kind", Limit(rate=Rate(3, LEASE / 20, 1))),
    "queue concurrency": ("mail", Limit(concurrency=3)),
    "shared rate": ("the-api", Limit(rate=Rate(4, LEASE / 12, 6))),
}
CHOICES = [*((name,) for name in LIMITS), *combinations(LIMITS, 2)]


@dataclass
class Known:
    """A message as the model knows it. `held_until`: None if no lease holds."""

    kind: str
    channel: str
    due: float
    held_until: float | None = None
    claimed: object = None


@dataclass
class Tokens:
    """A token bucket in exact fractions."""

    rate: Rate
    left: Fraction
    at: Fraction = Fraction(0)

    def at_moment(self, now):
        moment = Fraction(now)
        gained = (moment - self.at) * self.rate.count / Fraction(self.rate.per.total_seconds())
        self.left, self.at = min(Fraction(self.rate.size), self.left + gained), moment
        return self.left


@dataclass
class Model:
    names: tuple
    messages: dict = field(default_factory=dict)
    buckets: dict = field(default_factory=dict)
    #: Until when a channel may not know that it has room, as nobody told.
    untold: dict = field(default_factory=dict)

    def scopes(self, kind, channel):
        """The limits of a message: the name of each, and its terms."""
        for name in self.names:
            scope, limit = LIMITS[name]
            yield {"": (kind, channel), "kind": kind}.get(scope, scope), limit

    def held(self, scope, now):
        return sum(
            one.held_until is not None and one.held_until > now
            for one in self.messages.values()
            if scope in {name for name, _ in self.scopes(one.kind, one.channel)}
        )

    def tokens(self, scope, rate, now):
        return self.buckets.setdefault((scope, rate), Tokens(rate, Fraction(rate.size), Fraction(now))).at_moment(now)

    def blocked(self, kind, channel, now):
        return any(
            (limit.concurrency is not None and self.held(scope, now) >= limit.concurrency)
            or (limit.rate is not None and self.tokens(scope, limit.rate, now) < 1)
            for scope, limit in self.scopes(kind, channel)
        )


class LimitMachine(RuleBasedStateMachine):
    names = ()

    def __init__(self):
        super().__init__()
        self.model = Model(self.names)
        self.now = 0.0
        self.store = store_for(ChosenDatabase.alias)

    def teardown(self):
        Message.objects.all().delete()
        from delayedq.models import Channel, ChannelMessage, ChannelNotice, LimitState

        for model in (Channel, ChannelMessage, ChannelNotice, LimitState):
            model.objects.all().delete()

    @property
    def here(self):
        return self.store.at(at(self.now))

    def limits_of(self, queue, kind):
        shared, own = [], None
        for name in self.names:
            scope, limit = LIMITS[name]
            if scope:
                shared.append((kind if scope == "kind" else scope, limit))
            else:
                own = limit if own is None else Limit(concurrency=own.concurrency, rate=limit.rate)
        return Rules(tuple(shared), own)

    # What happens

    @initialize()
    def begin(self):
        self.offer("a", KINDS[0], 6, 0.0)

    @rule(
        channel=st.sampled_from(CHANNELS),
        kind=st.sampled_from(KINDS),
        number=st.integers(1, 6),
        delay=st.sampled_from([0.0, -5.0, 1.0, 9.0]),
    )
    def offer(self, channel, kind, number, delay):
        due = self.now + delay
        offers = [in_channel(channel, kind=kind, scheduled_at=at(due)) for _ in range(number)]
        for offered in self.here.offer_many(offers):
            self.model.messages[offered.id] = Known(kind, channel, due)

    @rule(steps=st.sampled_from([1, 2, 4, 12, 40, 241]))
    def pass_time(self, steps):
        self.now += steps * STEP

    @rule(limit=st.sampled_from([1, 2, 5, 100]))
    def claim(self, limit):
        self._claim(limit)

    def _claim(self, limit):
        claim = self.here.claim_channels(self.limits_of, limit, LEASE, "first")
        assert len(claim.claimed) <= limit
        for one in claim.claimed:
            self._take(one)
        return claim

    def _take(self, claimed):
        known, now = self.model.messages[claimed.id], self.now
        assert known.due <= now
        assert known.held_until is None or known.held_until <= now
        for scope, limit in self.model.scopes(known.kind, known.channel):
            assert limit.concurrency is None or self.model.held(scope, now) < limit.concurrency
            if limit.rate is not None:
                assert self.model.tokens(scope, limit.rate, now) >= Fraction(999_999, 1_000_000)
                self.model.buckets[scope, limit.rate].left -= 1
        known.held_until, known.claimed = now + LEASE.total_seconds(), claimed

    @rule()
    def claim_all(self):
        """What is left waits for a limit."""
        for _ in range(50):
            if self._claim(100).due_in != 0.0:
                break
        for one in self.model.messages.values():
            waits = one.due <= self.now and (one.held_until is None or one.held_until <= self.now)
            if waits and self.now >= self.model.untold.get((one.kind, one.channel), 0.0):
                assert self.model.blocked(one.kind, one.channel, self.now), one

    def _held(self):
        return [one for one in self.model.messages.values() if one.claimed is not None]

    @precondition(lambda self: self._held())
    @rule(data=st.data(), end=st.sampled_from([succeed, fail, retry, put_back]))
    def end(self, data, end):
        one = data.draw(st.sampled_from(self._held()))
        settled = self.here.settle([end(one.claimed, started=0.5, finished=0.0)], "first")
        assert not settled.lost | settled.busy | settled.superseded
        if end in {succeed, fail}:
            del self.model.messages[one.claimed.id]
        one.held_until = one.claimed = None

    @precondition(lambda self: self._held())
    @rule(data=st.data(), how=st.sampled_from(["renew", "release", "drop"]))
    def elsewhere(self, data, how):
        """What keepers do; and what nobody tells the channel."""
        one = data.draw(st.sampled_from(self._held()))
        id_, token = one.claimed.id, one.claimed.token
        if how == "renew":
            assert not self.here.renew([(id_, token)], LEASE).lost
            one.held_until = self.now + LEASE.total_seconds()
            return
        if how == "release":
            assert not self.here.release([(id_, token)]).lost
        else:
            self.model.untold[one.kind, one.channel] = self.now + LEASE.total_seconds()
            Message.objects.filter(pk=id_).delete()
            del self.model.messages[id_]
        one.held_until = one.claimed = None


@pytest.mark.parametrize("names", CHOICES, ids=" and ".join)
def test_no_limit_is_exceeded_and_nothing_waits_without_one(store, names):
    machine = type("Machine", (LimitMachine,), {"names": names})
    run_state_machine_as_test(machine, settings=SETTINGS)


def test_the_moments_of_the_model_are_exact():
    assert Fraction(STEP) == Fraction(1, 4)
    assert at(STEP) > NOW
