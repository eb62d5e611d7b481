"""Places of attempts whose message was replaced into another channel while they run."""

from __future__ import annotations

import pytest

from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit, Order, channel_of
from delayedq.models import ChannelMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import Move, Seen
from tests.limits.channels import asked, channels_of, claims, finish, in_channel, offer, one_by_one, shared
from tests.limits.test_conformance_places_held import running
from tests.store.given import KIND, LEASE, at, retry


def test_what_is_replaced_into_another_channel_has_its_place_where_it_started(store):
    first = running(store)
    new = in_channel("b", "first", payload="[2]", scheduled_at=at(1))
    assert store.at(at(1)).offer(new).outcome == "updated"

    assert claims(store, rules=one_by_one(), now=at(2)) == []
    store.at(at(50)).renew([(first.id, first.token)], LEASE)
    assert claims(store, rules=one_by_one(), now=at(109)) == []
    assert finish(store, first, now=at(109)).superseded == {first.id}
    assert len(claims(store, rules=one_by_one(), now=at(109))) == 2


def moved(store, *channels):
    """The only message that runs, replaced into one of these channels after the other while it runs."""
    first = running(store)
    for number, channel in enumerate(channels, start=1):
        new = in_channel(channel, "first", payload=f"[{number}]", scheduled_at=at(1))
        assert store.at(at(1)).offer(new).outcome == "updated"
    return first


def test_an_attempt_does_not_count_where_its_message_waits_for_it(store):
    first = moved(store, "b")
    offer(store, "b", now=at(1))
    assert channels_of(claims(store, rules=one_by_one(), now=at(2))) == ["b"]
    assert finish(store, first, now=at(3)).superseded == {first.id}
    assert sorted(channels_of(claims(store, rules=one_by_one(2), now=at(3)))) == ["a", "b"]


@pytest.mark.parametrize("through", [["b", "a"], ["b", "c", "a"], ["b", "a", "b", "a"]])
def test_an_attempt_counts_once_in_its_channel_when_its_message_comes_back(store, through):
    first = moved(store, *through)
    offer(store, "a", now=at(1))
    assert len(claims(store, rules=one_by_one(2), now=at(2))) == 1
    assert finish(store, first, now=at(3)).superseded == {first.id}
    assert len(claims(store, rules=one_by_one(2), now=at(3))) == 1


def test_what_waits_for_an_attempt_elsewhere_runs_when_its_lease_has_run_out(store):
    first = moved(store, "b")
    assert asked(store, rules=one_by_one(), now=at(2)) == ([], 58)
    assert asked(store, rules=one_by_one(), now=at(59))[0] == []
    taken = claims(store, rules=one_by_one(), now=at(61))
    assert (first.id, "b") in {(one.id, channel_of(one.metadata)) for one in taken}
    offer(store, "b", now=at(62))
    assert "b" not in channels_of(claims(store, rules=one_by_one(), now=at(63)))  # now it counts there


def test_what_is_replaced_into_another_channel_and_then_ended_has_its_place_where_it_started(store):
    first = running(store)
    store.at(at(1)).offer(in_channel("b", "first", payload="[2]", scheduled_at=at(1)))
    store.at(at(50)).renew([(first.id, first.token)], LEASE)
    assert store.at(at(51)).unschedule(KIND, "first")

    assert claims(store, rules=one_by_one(), now=at(109)) == []
    finish(store, first, now=at(109))
    assert len(claims(store, rules=one_by_one(), now=at(109))) == 1
    assert ChannelMessage.objects.count() == 1


def test_one_attempt_counts_once_in_what_channels_share(store):
    rules = shared(Limit(concurrency=2))
    first = running(store, shared(Limit(concurrency=1)))
    store.at(at(1)).offer(in_channel("b", "first", payload="[2]", scheduled_at=at(1)))

    assert len(claims(store, rules=rules, now=at(2))) == 1
    finish(store, first, now=at(3))


@pytest.mark.parametrize("rules", [one_by_one(), shared(Limit(concurrency=2))], ids=["channel", "shared"])
@pytest.mark.parametrize("through", [["b"], ["b", "c"], ["b", "a"]])
def test_what_is_moved_and_then_released_holds_no_place(store, rules, through):
    """As a worker does that stops, with what it had not started."""
    first = moved(store, *through)
    assert not store.at(at(2)).release([(first.id, first.token)]).lost
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()

    taken = claims(store, rules=rules, now=at(3))
    both = 1 if through[-1] == "a" and rules.channel else 2
    assert len(taken) == both
    assert claims(store, rules=rules, now=at(3)) == []


def test_its_channel_is_told_although_it_rests_until_the_lease_would_have_run_out(store):
    first = moved(store, "b")
    assert asked(store, rules=one_by_one(), now=at(2)) == ([], 58)
    store.at(at(3)).release([(first.id, first.token)])
    assert sorted(channels_of(claims(store, rules=one_by_one(), now=at(3)))) == ["a", "b"]


@pytest.mark.parametrize("through", ["another channel", "another queue"])
def test_a_channel_is_free_when_the_message_leaves_that_blocked_it(store, through):
    rules = Rules(channel=Limit(order=Order.STRICT))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    offer(store, "a", key="next")
    store.at(at(1)).settle([retry(first, started=1.0, finished=0.0, delay=1_000.0)], "first")
    assert claims(store, rules=rules, now=at(2)) == []

    if through == "another channel":
        new = in_channel("b", "first", payload="[2]", scheduled_at=at(1_001))
        assert store.at(at(3)).offer(new).outcome == "updated"
    else:
        row = Message.objects.get(pk=first.id)
        seen = Seen._make(getattr(row, name) for name in Seen._fields)
        assert operator_store(store.alias).at(at(3)).move([Move(seen, at(1_001), "elsewhere", 0)]) == {first.id}
    assert [one.key for one in claims(store, rules=rules, now=at(4))] == ["next"]
