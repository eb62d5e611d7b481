"""Held places after an outage are as leases are: those that ran out can be extended until a claim frees them."""

from __future__ import annotations

import pytest

from delayedq.limits.channels import Channels
from delayedq.limits.rules import Limit
from delayedq.models import ChannelMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import Move, Rewrite, Seen
from tests.limits.channels import channels_of, claims, finish, in_channel, offer, one_by_one, shared
from tests.limits.test_conformance_places_held import VERBS, running, stop
from tests.store.given import LEASE, at, retry


@pytest.fixture(params=VERBS, ids=lambda verb: verb.__name__)
def end(request):
    return request.param


def test_a_place_that_ran_out_is_extended_until_a_claim_has_given_it_away(store, end):
    first = running(store)
    end(store, first, at(1))
    assert claims(store, rules=one_by_one(), now=at(61), expired=False) == []
    store.at(at(62)).renew([(first.id, first.token)], LEASE)

    assert claims(store, rules=one_by_one(), now=at(121)) == []
    assert finish(store, first, now=at(121)).lost == {first.id}
    assert len(claims(store, rules=one_by_one(), now=at(121))) == 1


def test_what_is_ended_after_its_lease_ran_out_has_its_place_until_a_claim_may_give_it_away(store, end):
    if end is stop:
        return  # it stops only what is held
    first = running(store)
    end(store, first, at(61))
    assert claims(store, rules=one_by_one(), now=at(62), expired=False) == []
    store.at(at(63)).renew([(first.id, first.token)], LEASE)

    assert claims(store, rules=one_by_one(), now=at(122)) == []
    assert len(claims(store, rules=one_by_one(), now=at(123.1))) == 1


def test_a_place_that_ran_out_counts_in_shared_limits_too(store, end):
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    end(store, first, at(1))
    offer(store, "b", now=at(1))

    assert claims(store, rules=rules, now=at(61), expired=False) == []
    assert len(claims(store, rules=rules, now=at(61))) == 1


def test_what_is_replaced_into_another_channel_after_its_lease_ran_out_has_its_place_where_it_started(store):
    first = running(store)
    new = in_channel("b", "first", payload="[2]", scheduled_at=at(61))
    assert store.at(at(61)).offer(new).outcome == "updated"
    assert claims(store, rules=one_by_one(), now=at(62), expired=False) == []
    assert not store.at(at(63)).renew([(first.id, first.token)], LEASE).lost

    assert claims(store, rules=one_by_one(), now=at(122)) == []
    assert finish(store, first, now=at(122)).superseded == {first.id}
    assert sorted(channels_of(claims(store, rules=one_by_one(), now=at(122)))) == ["a", "b"]


def test_what_is_replaced_after_its_lease_ran_out_leaves_its_place_to_the_next_claim(store):
    first = running(store)
    assert store.at(at(61)).offer(in_channel("b", "first", payload="[2]", scheduled_at=at(61))).outcome == "updated"
    taken = claims(store, rules=one_by_one(), now=at(61))

    assert sorted(channels_of(taken)) == ["a", "b"]
    assert store.at(at(62)).renew([(first.id, first.token)], LEASE).lost


# What an operator does to a message whose lease ran out, while its attempt may run on


def seen(one):
    return Seen._make(getattr(Message.objects.get(pk=one.id), name) for name in Seen._fields)


def move(operator, one, queue="mail"):
    return operator.move([Move(seen(one), at(1_000), queue, 0)])


def move_to_another_queue(operator, one):
    return move(operator, one, "elsewhere")


def cancel(operator, one):
    return operator.cancel([seen(one)])


def rewrite(operator, one):
    return operator.rewrite([Rewrite(seen(one), "{}", "[2]")])


EDITS = pytest.mark.parametrize("edit", [move, move_to_another_queue, cancel, rewrite], ids=lambda edit: edit.__name__)


@EDITS
@pytest.mark.parametrize("rules", [one_by_one(), shared(Limit(concurrency=1))], ids=["channel", "shared"])
def test_what_an_operator_edits_after_its_lease_ran_out_has_its_place_while_it_may_run(store, edit, rules):
    first = running(store, rules)
    assert edit(operator_store(store.alias).at(at(61)), first) == {first.id}
    assert claims(store, rules=rules, now=at(62), expired=False) == []
    assert store.at(at(63)).renew([(first.id, first.token)], LEASE).lost

    assert claims(store, rules=rules, now=at(122)) == []
    assert finish(store, first, now=at(122)).lost == {first.id}
    assert len(claims(store, rules=rules, now=at(122))) == 1
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()


@EDITS
def test_what_an_operator_edits_after_its_lease_ran_out_leaves_its_place_to_the_next_claim(store, edit):
    first = running(store)
    edit(operator_store(store.alias).at(at(61)), first)
    assert len(claims(store, rules=one_by_one(), now=at(62))) == 1
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()


@pytest.mark.parametrize("rules", [one_by_one(), shared(Limit(concurrency=2))], ids=["channel", "shared"])
def test_what_an_operator_moves_into_another_queue_counts_where_it_ran_and_once(store, rules):
    first = running(store, one_by_one())
    move = Move(seen(first), at(61), "elsewhere", 0)
    assert operator_store(store.alias).at(at(61)).move([move]) == {first.id}
    assert len(claims(store, rules=rules, now=at(62), expired=False)) == 1


@EDITS
def test_an_edit_of_what_waits_for_another_attempt_holds_no_place(store, edit):
    first = running(store)
    store.at(at(1)).settle([retry(first)], "first")
    edit(operator_store(store.alias).at(at(2)), first)
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()


def test_what_is_renewed_and_then_taken_away_between_two_reads_of_a_claim_is_counted(store, end, monkeypatch):
    """The claim has read that the lease ran out, and not yet whether it can be renewed."""
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    offer(store, "b", now=at(1))
    leased_among = type(Channels.of(store)).leased_among

    def taken_meanwhile(self, ids):
        monkeypatch.setattr(type(Channels.of(store)), "leased_among", leased_among)
        assert not store.at(at(61)).renew([(first.id, first.token)], LEASE).lost
        end(store, first, at(61))
        return leased_among(self, ids)

    monkeypatch.setattr(type(Channels.of(store)), "leased_among", taken_meanwhile)
    assert claims(store, rules=rules, now=at(61)) == []
    assert not Message.objects.filter(pk=first.id).exists()
    assert len(claims(store, rules=rules, now=at(122))) == 1
