"""Several limits with a size on one message: nothing is dropped in vain, and no limit is left fuller than it is."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from itertools import count

import pytest
from django.db import transaction

from delayedq.exceptions import QueueFull
from delayedq.limits.rules import OnFull, Size, channel_of
from delayedq.models import ChannelSize, FinishedMessage, Message
from delayedq.store.protocol import OfferOutcome, OnConflict
from tests.limits.channels import KIND, claims, finish, in_channel
from tests.store.given import NOW, at, together

pytestmark = pytest.mark.slow

CREATED, UPDATED, IGNORED, DROPPED = OfferOutcome
OLDEST = OnFull.DROP_OLDEST
OTHER = "tests.other"


def offer(store, *offers, policy=OnConflict.REPLACE):
    return [one.outcome for one in store.at(NOW).offer_many(offers, policy)]


def live():
    return Counter(channel_of(metadata) for metadata in Message.objects.values_list("metadata", flat=True))


def keys():
    return set(Message.objects.values_list("key", flat=True))


@pytest.mark.parametrize("scopes", [("", "mail"), ("mail", "")])
def test_one_message_makes_room_in_all_limits_that_count_it(store, scopes):
    most = {"": 2, "mail": 3}
    new = partial(in_channel, sizes=[Size(scope, most[scope], OLDEST) for scope in scopes])
    offer(store, new("b", "b 1", scheduled_at=at(0)), *[new("a", f"a {n}", scheduled_at=at(n)) for n in (1, 2)])
    assert offer(store, new("a", "a 3", scheduled_at=at(3))) == [CREATED]
    assert keys() == {"b 1", "a 2", "a 3"}  # not b 1, which was due the longest in the queue


def test_a_batch_sees_the_room_that_it_has_made(store):
    new = partial(in_channel, sizes=(Size("", 2, OLDEST), Size("mail", 3, OnFull.DROP)))
    offer(store, *[new("a", f"old {n}", scheduled_at=at(n)) for n in (1, 2)], new("b", "b"))
    outcomes = offer(store, *[new("a", f"new {n}", scheduled_at=at(n)) for n in (3, 4)], new("b", "b 2"))
    assert outcomes == [CREATED, CREATED, DROPPED]
    assert keys() == {"b", "new 3", "new 4"}


def test_a_limit_that_drops_keeps_the_oldest_of_another_one(store):
    """The oldest of the queue is of another task: it would make no room for this one."""
    new = partial(in_channel, "a", sizes=(Size("mail", 2, OLDEST), Size(KIND, 1, OnFull.DROP)))
    offer(store, new("other", kind=OTHER, scheduled_at=at(-9), sizes=(Size("mail", 2, OLDEST),)), new("first"))
    assert offer(store, new("second")) == [DROPPED]
    assert keys() == {"other", "first"}


def test_a_limit_that_raises_does_so_whatever_another_one_would_do(store):
    new = partial(in_channel, "a", sizes=(Size("mail", 1, OLDEST), Size(KIND, 1, OnFull.RAISE)))
    other = in_channel("a", "other", kind=OTHER, sizes=(Size("mail", 1, OLDEST),))
    offer(store, other)
    offer(store, new("first")._replace(sizes=()))  # beyond the size of the queue
    with pytest.raises(QueueFull, match=KIND):
        offer(store, new("second"))
    assert keys() == {"first", "other"}


@pytest.mark.parametrize("on_full", [OnFull.DROP, OLDEST])
def test_what_moves_to_another_channel_leaves_room_in_its_own_within_the_batch(store, on_full):
    new = partial(in_channel, sizes=(Size("", 1, on_full),))
    offer(store, new("a", "moves"))
    # The second offer counts the channel; the third takes the place that the message has left.
    outcomes = offer(store, new("a", "moves", payload="[1]"), new("b", "moves"), new("a", "next"), new("b", "beyond"))
    assert outcomes == [UPDATED, UPDATED, CREATED, CREATED if on_full is OLDEST else DROPPED]
    assert live() == {"a": 1, "b": 1}
    assert keys() == ({"next", "beyond"} if on_full is OLDEST else {"moves", "next"})


@pytest.mark.parametrize("on_full", [OnFull.DROP, OLDEST])
def test_so_does_what_moves_after_its_channel_was_counted(store, on_full):
    new = partial(in_channel, sizes=(Size("", 1, OnFull.DROP),))
    offer(store, new("a", "moves"))
    moved = in_channel("b", "moves", sizes=(Size("", 1, on_full),))
    assert offer(store, new("a", "early"), moved, new("a", "next")) == [DROPPED, UPDATED, CREATED]
    assert live() == {"a": 1, "b": 1}


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_only_what_makes_room_is_locked(store, alias):
    """SQLite locks no row."""
    new = partial(in_channel, "a", sizes=(Size("", 10, OLDEST),))
    offer(store, *[new(str(number), scheduled_at=at(number - 100)) for number in range(9)])
    with transaction.atomic(using=alias):
        offer(store, *[new(f"new {number}", scheduled_at=at(100)) for number in range(3)])
        ((claimed),) = together(partial(claims, store))
    assert {one.key for one in claimed} == {str(number) for number in range(2, 9)}


# What a plain reading of the rules says


class Reference:
    """The messages that there are, and what a batch makes of them, with nothing in mind but the rules."""

    def __init__(self, limits):
        #: (kind, key) -> [due, channel, in flight]
        self.live, self.limits = {}, limits

    def counted(self, scope, place):
        kind = place[0]
        of = {"": place, "mail": None, kind: kind}.get(scope, ())
        return [
            name
            for name, (_, its_channel, _) in self.live.items()
            if of is None or of == name[0] or of == (name[0], its_channel)
        ]

    def offer(self, kind, key, channel, due, policy):
        name, place = (kind, key), (kind, channel)
        known = self.live.get(name)
        if known is not None and policy is OnConflict.KEEP:
            return IGNORED
        scopes = [scope for scope in ("", kind, "mail") if scope in self.limits]
        entered = [scope for scope in scopes if known is None or name not in self.counted(scope, place)]
        dropped, refused = set(), False
        ours = sorted(entered, key=lambda scope: [OLDEST, OnFull.RAISE, OnFull.DROP].index(self.limits[scope][1]))
        for scope in ours:
            most, on_full = self.limits[scope]
            names = self.counted(scope, place)
            if len(names) < most:
                continue
            if on_full is OLDEST:
                if not dropped & set(names):
                    waiting = [one for one in names if not self.live[one][2]]
                    dropped |= {min(waiting, key=lambda one: self.live[one][0])} if waiting else set()
                    refused = refused or not waiting
            else:
                refused = refused or len(set(names) - dropped) >= most
        if refused:
            return DROPPED
        for one in dropped:
            del self.live[one]
        self.live[name] = (due, channel, False)
        return CREATED if known is None else UPDATED


@pytest.mark.parametrize("seed", range(6))
def test_batches_do_what_a_plain_reading_of_the_rules_says(store, seed):
    chance = random.Random(seed)
    limits = {
        scope: (chance.randint(1, most), chance.choice([OLDEST, OLDEST, OnFull.DROP]))
        for scope, most in {"": 4, KIND: 8, OTHER: 8, "mail": 12}.items()
    }
    reference, unique, times = Reference(limits), count(), chance.sample(range(-5_000, 5_000), 5_000)
    for _ in range(25):
        policy = chance.choice([OnConflict.REPLACE, OnConflict.REPLACE, OnConflict.KEEP])
        batch = [_offer(chance, times.pop(), next(unique)) for _ in range(chance.choice([1, 3, 12]))]
        offers = [
            in_channel(
                channel,
                key,
                kind=kind,
                scheduled_at=at(due),
                sizes=[Size(scope, *limits[scope]) for scope in ("", kind, "mail")],
            )
            for kind, key, channel, due in batch
        ]
        expected = [reference.offer(*one, policy) for one in batch]
        assert offer(store, *offers, policy=policy) == expected
        stored = {(one.kind, one.key): channel_of(one.metadata) for one in Message.objects.all()}
        assert stored == {name: channel for name, (_, channel, _) in reference.live.items()}
        if chance.random() < 0.5:
            _run_some(store, chance, reference)
    for row in ChannelSize.objects.all():
        assert row.size >= 0
    assert FinishedMessage.objects.filter(outcome="cancelled").exists() == any(
        on_full is OLDEST for _, on_full in limits.values()
    )


def _offer(chance, due, number):
    """Those with a key that comes again are not due: what runs would not be replaced, but superseded."""
    kind, channel = chance.choice([KIND, OTHER]), chance.choice("abc")
    if chance.random() < 0.5:
        return kind, f"key {chance.randrange(12)}", channel, abs(due) + 1
    return kind, f"once {number}", channel, due


def _run_some(store, chance, reference):
    """Some of what is due is claimed, and some of that ends."""
    claimed = claims(store, chance.randint(1, 6))
    for one in claimed:
        name = (one.kind, one.key)
        due, channel, _ = reference.live[name]
        reference.live[name] = (due, channel, True)
        if chance.random() < 0.6:
            finish(store, one)
            del reference.live[name]
