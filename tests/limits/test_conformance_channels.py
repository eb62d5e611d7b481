"""Messages with a channel: how they are lined up, claimed in fair turn, and what is left of them."""

from __future__ import annotations

from collections import Counter

import pytest

from delayedq.exceptions import InvalidMessage
from delayedq.limits.channels import MOST_NOTICES, Channels
from delayedq.limits.rules import channel_of
from delayedq.models import Channel, ChannelMessage, FinishedMessage, Message
from delayedq.store.protocol import Discard, Lane
from tests.limits.channels import (
    asked,
    at_a_rate,
    channels_of,
    claims,
    finish,
    in_channel,
    left_behind,
    offer,
    one_by_one,
)
from tests.store.given import KIND, LEASE, NOW, at, claim, fail, keys, message, put_back, retry, settle, succeed

# Lining up


def test_no_ordinary_claim_meets_a_message_with_a_channel(store):
    offer(store, "acme")

    assert claim(store, 9) == []
    (lane,) = store.at(NOW).lanes()
    assert lane.queue == "mail"
    assert claim(store, 9, lanes=[Lane("mail", 0)]) == []


def test_a_claim_from_channels_meets_no_other_message(store):
    store.at(NOW).offer(message("plain"))
    offer(store, "acme", key="limited")

    assert keys(claims(store)) == ["limited"]
    assert keys(claim(store, 9)) == ["plain"]


def test_its_priority_is_the_one_it_was_given_wherever_it_is_read(store):
    offer(store, "acme", priority=5)
    assert Message.objects.get().priority == 5

    finish(store, *claims(store))
    assert FinishedMessage.objects.get().priority == 5


@pytest.mark.parametrize("channel", ["x" * 201, 7, "a\0b"])
def test_what_is_no_channel_is_refused_and_nothing_stored(store, channel):
    with pytest.raises(InvalidMessage, match="channel"):
        store.at(NOW).offer(in_channel(channel))
    assert Message.objects.count() == 0
    assert left_behind() == (0, 0, 0)


def test_an_offer_that_is_undone_leaves_nothing(store, alias):
    from tests.store.given import undone

    with undone(alias):
        offer(store, "acme")
    assert left_behind() == (0, 0, 0)


# What is claimed


def test_nothing_is_claimed_before_its_time(store):
    offer(store, "acme", scheduled_at=at(3))

    first = asked(store)
    assert first.claimed == []
    assert first.due_in == pytest.approx(3, abs=0.01)
    assert claims(store, now=at(2.9)) == []
    assert len(claims(store, now=at(3))) == 1


def test_in_a_channel_the_order_is_priority_then_due_time_then_id(store):
    for key, fields in {
        "late": {"scheduled_at": at(-1)},
        "early": {"scheduled_at": at(-9)},
        "urgent": {"scheduled_at": at(-1), "priority": 9},
        "later": {"scheduled_at": at(-1)},
    }.items():
        offer(store, "acme", key=key, **fields)

    assert keys(claims(store)) == ["urgent", "early", "late", "later"]


def test_a_future_message_of_higher_priority_is_not_in_the_way(store):
    offer(store, "acme", key="future", priority=9, scheduled_at=at(60))
    offer(store, "acme", key="now")

    assert keys(claims(store)) == ["now"]


def test_what_was_claimed_is_not_claimed_again(store):
    offer(store, *["acme"] * 3)

    assert len(claims(store, 2)) == 2
    assert len(claims(store)) == 1
    assert claims(store) == []


def test_an_expired_lease_is_claimable_again(store):
    offer(store, "acme", key="a")
    (first,) = claims(store, worker="dead:1:x")

    assert claims(store, now=at(59)) == []
    (again,) = claims(store, now=at(61))
    assert (again.key, again.attempt) == ("a", 2)
    assert settle(store, succeed(first), now=at(62)).lost == {first.id}


def test_an_expired_lease_is_claimable_again_also_if_another_message_is_due_much_later(store):
    offer(store, "acme")
    offer(store, "acme", scheduled_at=at(3_600))
    (first,) = claims(store, worker="dead:1:x")

    assert claims(store, now=at(1)) == []
    assert asked(store, now=at(2)).due_in == LEASE.total_seconds() - 2
    assert [one.id for one in claims(store, now=at(61))] == [first.id]


def test_of_a_group_that_is_not_served_nothing_is_claimed(store):
    offer(store, "acme")

    assert Channels.of(store.at(NOW)).claim(lambda queue, kind: None, 9, LEASE, "first").claimed == []
    assert len(claims(store)) == 1


def test_a_paused_queue_gives_nothing(store):
    from delayedq.operations.pauses import pause, resume

    offer(store, "acme")
    pause("mail", store=store)
    assert claims(store) == []
    resume("mail", store=store)
    assert len(claims(store)) == 1


# Fair turn


def test_channels_take_turns_however_many_messages_one_has(store):
    offer(store, *["large"] * 50)
    offer(store, "a", "b", "c")

    assert Counter(channels_of(claims(store, 8))) == {"large": 5, "a": 1, "b": 1, "c": 1}


def test_the_channel_that_had_the_least_work_is_first(store):
    offer(store, *["slow"] * 9, *["quick"] * 9)
    for one in (first := claims(store, 2)):
        finish(store, one, seconds=10.0 if channel_of(one.metadata) == "slow" else 0.1)

    second = [channel_of(claims(store, 1, now=at(number))[0].metadata) for number in range(5)]
    assert {channel_of(one.metadata) for one in first} == {"slow", "quick"}
    assert second == ["quick"] * 5


def test_a_channel_does_not_jump_its_turn_by_priority_or_an_early_time(store):
    offer(store, "urgent", "urgent", "urgent", priority=9, scheduled_at=at(-900))
    assert channels_of(claims(store, 1)) == ["urgent"]
    offer(store, "patient", "patient", priority=-9)

    assert channels_of(claims(store, 1)) == ["patient"]
    assert sorted(channels_of(claims(store, 2))) == ["patient", "urgent"]
    assert channels_of(claims(store)) == ["urgent"]


# The end


def test_a_channel_vanishes_with_its_last_message(store):
    offer(store, "acme")
    finish(store, *claims(store))

    assert claims(store) == []
    assert left_behind() == (0, 0, 0)


def test_thousands_of_channels_are_forgotten_when_their_messages_have_ended(store):
    offer(store, *[f"tenant {number}" for number in range(1_200)])
    claimed, due_in = True, 0.0
    while claimed or due_in is not None:
        claimed, due_in = asked(store, 500, rules=one_by_one())
        finish(store, *claimed)
        assert due_in is None or due_in == 0.0

    assert left_behind() == (0, 0, 0)


@pytest.mark.parametrize("end", [succeed, fail, Discard])
def test_whatever_ends_a_message_frees_its_place(store, end):
    offer(store, "acme", "acme")
    (first,) = claims(store, rules=one_by_one())
    settle(store, end(first))

    assert len(claims(store, rules=one_by_one())) == 1


@pytest.mark.parametrize("back", [retry, put_back])
def test_a_message_that_is_given_back_frees_its_place_and_waits_again(store, back):
    offer(store, "acme", "acme")
    (first,) = claims(store, rules=one_by_one())
    settle(store, back(first, delay=30.0))

    (second,) = claims(store, rules=one_by_one())
    assert second.id != first.id
    finish(store, second)
    assert claims(store, rules=one_by_one(), now=at(29)) == []
    assert [one.id for one in claims(store, rules=one_by_one(), now=at(31))] == [first.id]


@pytest.mark.parametrize("running", [False, True])
def test_a_message_that_is_taken_back_leaves_no_place(store, running):
    offer(store, "acme", key="a")
    if running:
        claims(store)
    assert store.at(NOW).unschedule(KIND, "a")

    assert claims(store, now=at(120)) == []
    claims(store, now=at(240))
    assert left_behind() == (0, 0, 0)


def test_a_replaced_message_waits_where_its_new_time_says(store):
    offer(store, "acme", key="a", scheduled_at=at(60))
    store.at(NOW).offer(in_channel("acme", "a", payload="1", scheduled_at=at(5)))

    assert asked(store).due_in == pytest.approx(5, abs=0.01)
    assert keys(claims(store, now=at(6))) == ["a"]


def test_a_message_that_is_replaced_while_it_runs_runs_once_more_and_never_beside(store):
    offer(store, "acme", key="a")
    (first,) = claims(store)
    store.at(NOW).offer(in_channel("acme", "a", payload="1"))
    assert claims(store) == []

    assert settle(store, succeed(first)).superseded == {first.id}
    assert [one.payload for one in claims(store)] == ["1"]


def test_a_message_that_is_replaced_by_one_without_a_channel_has_no_place(store):
    offer(store, "acme", key="a")
    store.at(NOW).offer(message("a", payload="1"))

    assert claims(store) == []
    assert keys(claim(store, 9)) == ["a"]
    assert ChannelMessage.objects.count() == 0


def test_a_million_names_need_no_more_than_what_waits(store):
    offer(store, *[f"tenant {number}" for number in range(300)])
    while (answer := asked(store, 100)).due_in is not None:
        finish(store, *answer.claimed)

    assert left_behind() == (0, 0, 0)


def test_a_channel_keeps_its_tokens_when_it_is_empty(store):
    rules = at_a_rate(1, seconds=60)
    offer(store, "acme")
    finish(store, *claims(store, rules=rules))
    claims(store, rules=rules, now=at(1))
    offer(store, "acme", now=at(2))

    assert claims(store, rules=rules, now=at(3)) == []
    assert len(claims(store, rules=rules, now=at(60))) == 1
    assert Channel.objects.count() == 1


def test_a_channel_that_gets_more_than_its_share_wakes_for_what_is_due_later(store):
    offer(store, *["large"] * 40, "small")
    offer(store, "large", scheduled_at=at(5))

    assert len(claims(store, 100)) == 41
    assert asked(store).due_in == pytest.approx(5, abs=0.01)
    assert len(claims(store, now=at(5))) == 1


def test_a_claim_that_does_not_take_all_notices_is_followed_by_the_next_at_once(store):
    offer(store, *[f"tenant {number}" for number in range(MOST_NOTICES)], scheduled_at=at(3600))
    offer(store, "last")

    assert asked(store, 1) == ([], 0.0)
    assert channels_of(claims(store, 1)) == ["last"]
