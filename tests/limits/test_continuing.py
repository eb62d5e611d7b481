"""A channel continues: with the end of a message, the next one of its channel has its place, in one statement."""

from __future__ import annotations

from math import inf

import pytest
from django.db import connections, transaction

from delayedq import limits
from delayedq.limits import setting
from delayedq.limits.channels import Channels
from delayedq.limits.continuing import Chains
from delayedq.limits.requests import AS_BEFORE, ChannelRequest, Rules
from delayedq.limits.rules import Limit, Order, Rate
from delayedq.models import (
    Channel,
    ChannelMessage,
    ChannelNotice,
    FinishedMessage,
    Message,
    PausedQueue,
    PausedTask,
)
from delayedq.store.claim_tokens import new_token
from tests.limits.channels import asked, channels_of, claims, left_behind, offer, one_by_one, shared
from tests.store.given import LEASE, at, elsewhere, fail, retry, succeed

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ONE = one_by_one()


@pytest.fixture
def chains():
    return Chains(longest=inf)


def end(store, chains, *claimed, rules=ONE, limit=9, now=None, how=succeed, may_continue=True):
    """As a worker does to which nothing else is due; now: seconds."""
    request = ChannelRequest(
        lambda queue, kind: rules, limit, LEASE, "first", new_token(), chains=chains, may_continue=may_continue
    )
    ends = [how(one, started=0.01, finished=0.0) for one in claimed]
    return Channels.of(store.at(at(1 if now is None else now))).settle_and_claim(ends, "first", request)


def keys(claimed):
    return [one.key for one in claimed]


def xmins(store):
    """The transactions that wrote the history, the message that runs, and its place."""
    with connections[store.alias].cursor() as cursor:
        cursor.execute(
            "SELECT xmin::text FROM delayedq_finishedmessage"
            " UNION SELECT xmin::text FROM delayedq_message WHERE lease_token IS NOT NULL"
            " UNION SELECT xmin::text FROM delayedq_channelmessage WHERE lease_token > 0"
        )
        return cursor.fetchall()


def refuse(*_, **__):
    raise AssertionError("a transaction of several statements")


def test_the_place_passes_to_the_next_message_in_one_statement(store, chains, monkeypatch):
    offer(store, "a", key="1")
    offer(store, "a", key="2", now=at(0.1))
    offer(store, "a", key="3", now=at(0.2))
    (first,) = claims(store, rules=ONE)
    with monkeypatch.context() as patched:
        patched.setattr(type(store.database), "atomic", refuse)
        settled, claim = end(store, chains, first)

    assert (any(settled), keys(claim.claimed), claim.due_in) == (False, ["2"], AS_BEFORE)
    assert FinishedMessage.objects.get().key == "1"
    assert len(xmins(store)) == 1
    assert ChannelMessage.objects.get(lease_token__gt=0).message_id == claim.claimed[0].id
    assert not ChannelNotice.objects.exists()
    assert asked(store, rules=ONE, now=at(1)).claimed == []


def test_the_order_within_the_channel_is_that_of_claims(store, chains):
    offer(store, "a", key="first")
    (first,) = claims(store, rules=ONE)
    offer(store, "a", key="plain")
    offer(store, "a", key="urgent", priority=5, now=at(0.5))
    offer(store, "a", key="later", priority=9, scheduled_at=at(2))
    offer(store, "b", key="other")

    assert keys(end(store, chains, first)[1].claimed) == ["urgent"]


def test_several_places_pass_each_in_its_channel(store, chains):
    offer(store, *"aaaabbbc")
    running = claims(store, rules=one_by_one(2))
    assert sorted(channels_of(running)) == [*"aabbc"]
    _, claim = end(store, chains, *running, rules=one_by_one(2))
    assert sorted(channels_of(claim.claimed)) == [*"aab"]
    assert claim.due_in == 0.0, "b and c are to be looked at"

    assert claims(store, rules=one_by_one(2), now=at(1)) == []
    assert end(store, chains, *claim.claimed, rules=one_by_one(2))[1].claimed == []
    assert (FinishedMessage.objects.count(), Message.objects.count()) == (8, 0)


def test_without_a_next_message_the_channel_is_told_and_forgotten(store, chains):
    offer(store, "a")
    (first,) = claims(store, rules=ONE)
    settled, claim = end(store, chains, first)
    assert (any(settled), claim) == (False, ([], 0.0))
    assert claims(store, rules=ONE, now=at(1)) == []
    assert left_behind() == (0, 0, 0)


def test_what_is_not_due_is_not_started_and_its_channel_waits_for_it(store, chains):
    offer(store, "a")
    (first,) = claims(store, rules=ONE)
    offer(store, "a", key="later", scheduled_at=at(5))
    assert end(store, chains, first)[1].claimed == []
    assert asked(store, rules=ONE, now=at(1)).due_in == pytest.approx(4.0)
    assert keys(claims(store, rules=ONE, now=at(5))) == ["later"]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(channel=Limit(share=1)),
        Rules(channel=Limit(order=Order.STRICT)),
        Rules(channel=Limit(concurrency=1, rate=Rate(1, LEASE))),
        shared(Limit(rate=Rate(1, LEASE)), channel=Limit(concurrency=1)),
        shared(Limit(concurrency=2), channel=Limit(concurrency=1)),
    ],
)
def test_where_more_than_places_is_limited_it_is_dealt_as_ever(store, chains, rules):
    offer(store, "a", "a", "a")
    first = claims(store, 1, rules=rules)
    settled, claim = end(store, chains, *first, rules=rules)
    assert (any(settled), claim.due_in == AS_BEFORE) == (False, False)
    assert FinishedMessage.objects.count() == 1


def pause_queue(store, one):
    PausedQueue.objects.create(queue=one.queue, paused_at=at(0))


def pause_task(store, one):
    PausedTask.objects.create(kind=one.kind, paused_at=at(0))


def set_limit(store, one):
    limits.set(one.kind, channel="a", concurrency=1, store=store)


@pytest.mark.parametrize(("change", "number"), [(pause_queue, 0), (pause_task, 0), (set_limit, 1)])
def test_what_an_operator_has_paused_or_set_is_asked_for(store, chains, monkeypatch, change, number):
    monkeypatch.setattr(setting, "check_scope", lambda scope, channel: None)
    offer(store, "a", "a")
    (first,) = claims(store, rules=ONE)
    change(store, first)
    settled, claim = end(store, chains, first)
    assert (any(settled), claim.due_in == AS_BEFORE, len(claim.claimed)) == (False, False, number)


@pytest.mark.parametrize(("how", "continues"), [(fail, True), (retry, False)])
def test_only_what_is_over_passes_its_place(store, chains, how, continues):
    offer(store, "a", "a")
    (first,) = claims(store, rules=ONE)
    assert (end(store, chains, first, how=how)[1].due_in == AS_BEFORE) == continues
    assert ChannelMessage.objects.filter(lease_token__gt=0).count() == 1


def test_the_end_of_an_attempt_that_has_lost_its_message_passes_no_place(store, chains):
    offer(store, *"aaab")
    first = claims(store, rules=ONE)
    (lost,) = (one for one in first if channels_of([one]) == ["a"])
    (kept,) = (one for one in first if one != lost)
    store.at(at(50)).renew([(kept.id, kept.token)], LEASE)
    assert len(claims(store, rules=ONE, now=at(61))) == 1
    settled, claim = end(store, chains, lost, kept, now=62)
    assert (settled.lost, claim.claimed) == ({lost.id}, [])
    assert FinishedMessage.objects.get().id == kept.id
    assert ChannelMessage.objects.filter(lease_token__gt=0).count() == 1


def test_what_was_replaced_while_it_ran_is_recorded_and_waits_again(store, chains):
    offer(store, "a", key="same")
    (first,) = claims(store, rules=ONE)
    offer(store, "a", key="same", payload='{"args": [1]}', now=at(0.5))
    settled, claim = end(store, chains, first)
    assert (settled.superseded, claim.due_in == AS_BEFORE) == ({first.id}, False)
    assert [one.generation for one in claim.claimed] == [1]


def test_what_another_transaction_has_locked_is_left_to_a_claim(store, chains, alias):
    offer(store, "a", key="1")
    offer(store, "a", key="2", now=at(0.1))
    (first,) = claims(store, rules=ONE)
    with transaction.atomic(using=alias):
        Message.objects.select_for_update().get(key="2")
        settled, claim = elsewhere(end, store, chains, first)
    assert (any(settled), claim.claimed, claim.due_in) == (False, [], 0.0)
    assert keys(claims(store, rules=ONE, now=at(1))) == ["2"]


def test_two_that_end_at_once_pass_their_places_to_two(store, chains, alias):
    """The second does not wait for the first, nor does it take the same message."""
    offer(store, *"aaaa")
    one, other = claims(store, rules=one_by_one(2))
    with transaction.atomic(using=alias):
        (first,) = end(store, chains, one, rules=one_by_one(2))[1].claimed
        (second,) = elsewhere(end, store, chains, other, rules=one_by_one(2))[1].claimed
    assert len({one.id, other.id, first.id, second.id}) == 4


def test_it_continues_only_if_nothing_else_is_due(store, chains):
    offer(store, *"aa")
    (first,) = claims(store, rules=ONE)
    _, claim = end(store, chains, first, may_continue=False)
    assert (len(claim.claimed), claim.due_in == AS_BEFORE) == (1, False)


def test_it_continues_for_a_while_only(store):
    """The first message has run for 0.01 s."""
    offer(store, *"aa")
    (first,) = claims(store, rules=ONE)
    _, claim = end(store, Chains(longest=0.005), first)
    assert (len(claim.claimed), claim.due_in == AS_BEFORE) == (1, False)


@pytest.mark.parametrize("may_continue", [False, True])
def test_a_channel_is_charged_with_all_that_it_ran(store, chains, may_continue):
    """Each of five took 0.01 s, as the sixth is taken to do; no other claim heard of those that continued."""
    offer(store, *"aaaaaaa")
    running = claims(store, rules=ONE)
    for second in range(1, 5):
        running = end(store, chains, *running, now=second, may_continue=may_continue)[1].claimed
    end(store, chains, *running, now=5, may_continue=False)
    channel = Channel.objects.get()
    assert (channel.turn, channel.seconds) == (pytest.approx(0.06), pytest.approx(0.01))
