"""A channel with a strict order: one at a time, and what is to be tried again is not overtaken until it has ended."""

from __future__ import annotations

import pytest

from delayedq import limits
from delayedq.limits import setting
from delayedq.limits.channels import Channels, unschedule_and_tell
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit
from delayedq.models import Message
from delayedq.store import operator_store
from delayedq.store.operator import Move, Seen
from tests.limits.channels import asked, claims, finish, in_channel, offer
from tests.store.given import KIND, LEASE, NOW, at, fail, keys, put_back, retry, settle

STRICT = Rules(channel=Limit(order="strict"))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail", KIND]))


def offered(store, *names, **fields):
    for name in names:
        offer(store, "a", key=name, **fields)


def head(store, *, now=NOW):
    """The one message that a claim takes; None: none."""
    taken = claims(store, rules=STRICT, now=now)
    assert len(taken) <= 1
    return taken[0] if taken else None


def blocked(store, delay=30.0):
    """`first` is to be tried again after this time, and `second` waits behind it."""
    offered(store, "first", "second")
    settle(store, retry(head(store), delay=delay))
    assert head(store) is None


def test_one_at_a_time_in_their_order(store):
    offered(store, "first", "second", "third")
    order = []
    while (one := head(store)) is not None:
        assert head(store) is None
        order.append(one.key)
        finish(store, one)

    assert order == ["first", "second", "third"]


@pytest.mark.parametrize("back", [retry, put_back])
def test_what_is_given_back_blocks_the_others_until_it_has_ended(store, back):
    offered(store, "first", "second")
    settle(store, back(head(store), delay=30.0))

    assert asked(store, rules=STRICT, now=at(1)).due_in == pytest.approx(29, abs=0.01)
    assert head(store, now=at(29)) is None
    again = head(store, now=at(31))
    assert again.key == "first"
    finish(store, again, now=at(32))
    assert head(store, now=at(33)).key == "second"


def test_also_where_others_come_meanwhile_with_a_higher_priority_and_an_earlier_time(store):
    blocked(store)
    offer(store, "a", key="urgent", priority=9, scheduled_at=at(-99), now=at(2))

    assert head(store, now=at(3)) is None
    assert head(store, now=at(31)).key == "first"


def test_an_attempt_whose_worker_died_is_repeated_before_the_others(store):
    offered(store, "first", "second")
    claims(store, rules=STRICT, worker="dead:1:x")
    offer(store, "a", key="urgent", priority=9, now=at(1))

    assert head(store, now=at(59)) is None
    assert head(store, now=at(61)).key == "first"


def test_a_message_that_fails_for_good_blocks_nobody(store):
    offered(store, "first", "second")
    settle(store, fail(head(store)))

    assert head(store).key == "second"


def test_what_has_not_begun_and_is_due_later_blocks_nobody(store):
    offered(store, "later", scheduled_at=at(60))
    offered(store, "now")

    assert head(store).key == "now"


def test_other_channels_go_on(store):
    blocked(store)
    offer(store, "b", key="other")

    assert keys(claims(store, rules=STRICT)) == ["other"]


def test_without_a_strict_order_others_pass(store):
    offered(store, "first", "second")
    one_at_a_time = Rules(channel=Limit(concurrency=1))
    (first,) = claims(store, rules=one_at_a_time)
    settle(store, retry(first, delay=30.0))

    assert keys(claims(store, rules=one_at_a_time)) == ["second"]


# How it is lifted


def test_a_head_that_is_skipped_lets_the_others_start_and_keeps_its_time(store, known):
    blocked(store)
    assert limits.skip("mail", channel="a", store=store.at(at(1)))

    second = head(store, now=at(2))
    assert second.key == "second"
    finish(store, second, now=at(3))
    assert not limits.skip("mail", channel="a", store=store.at(at(3)))
    assert head(store, now=at(31)).key == "first"


def test_what_nothing_blocks_is_not_skipped(store, known):
    offered(store, "first", "second")
    assert not limits.skip("mail", channel="a", store=store.at(NOW))
    head(store)
    assert not limits.skip("mail", channel="a", store=store.at(NOW))


def test_a_head_that_is_unscheduled_lets_the_others_start(store):
    blocked(store)
    assert unschedule_and_tell(store.at(at(1)), KIND, "first")

    assert head(store, now=at(2)).key == "second"


@pytest.mark.parametrize("change", ["cancel", "move"])
def test_a_head_that_an_operator_cancels_or_moves_lets_the_others_start(store, change):
    blocked(store)
    first = Message.objects.get(key="first")
    seen = Seen._make(getattr(first, name) for name in Seen._fields)
    operator, moment = operator_store(store.alias).at(at(1)), at(1)
    if change == "cancel":
        assert operator.cancel([seen]) == {first.pk}
        Channels.of(store.at(moment)).tell_freed([first.pk])
    else:
        assert operator.move([Move(seen, at(600), seen.queue, seen.priority)]) == {first.pk}

    assert head(store, now=at(2)).key == "second"


def test_a_head_that_is_replaced_waits_as_a_new_message_does(store):
    blocked(store)
    store.at(at(1)).offer(in_channel("a", "first", payload="1", scheduled_at=at(90)))

    assert head(store, now=at(31)).key == "second"


def test_a_limit_that_is_set_live_leaves_the_order_as_it_is(store, known):
    offered(store, "first", "second")
    limits.set("mail", channel="a", concurrency=5, store=store.at(NOW))

    settle(store, retry(head(store), delay=30.0))
    assert head(store, now=at(1)) is None


def test_a_strict_channel_is_paused_and_resumed(store, known):
    offered(store, "first")
    limits.pause("mail", channel="a", store=store.at(NOW))
    assert head(store) is None
    limits.resume("mail", channel="a", store=store.at(NOW))

    assert head(store).key == "first"


def test_its_order_is_kept_through_messages_that_expire_and_are_put_off(store):
    offered(store, *(f"{number}" for number in range(40)))
    order, moment = [], 0.0
    while (one := head(store, now=at(moment))) is not None:
        number = int(one.key)
        if number % 15 == 7 and one.attempt == 1:
            moment += LEASE.total_seconds() + 1
            continue
        if number % 10 == 3 and one.attempt == 1:
            settle(store, retry(one, delay=5.0), now=at(moment))
            assert head(store, now=at(moment + 1)) is None
            moment += 5
            continue
        order.append(number)
        finish(store, one, now=at(moment))

    assert order == list(range(40))
