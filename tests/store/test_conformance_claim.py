"""Claims: what is due, in which order, how many, and until when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.models import Message
from delayedq.store.protocol import Lane
from tests.store.given import (
    KIND,
    LANE,
    LEASE,
    NOW,
    at,
    claim,
    claim_one,
    fail,
    history,
    keys,
    live,
    message,
    retry,
    settle,
    succeed,
)

# What is due


def test_an_empty_queue_gives_nothing(store):
    assert claim(store) == []


def test_a_message_is_claimable_exactly_at_its_time_and_not_a_microsecond_before(store):
    store.at(NOW).offer(message("a", scheduled_at=at(3)))

    assert claim(store) == []
    assert claim(store, now=at(2.999999)) == []
    assert keys(claim(store, now=at(3))) == ["a"]


@pytest.mark.parametrize("microsecond", [0, 1, 500_000, 999_999])
def test_whole_and_broken_seconds_compare_as_times(store, microsecond):
    when = NOW.replace(microsecond=microsecond)
    store.at(NOW).offer(message("a", scheduled_at=when))

    assert claim(store, now=when - timedelta(microseconds=1)) == []
    assert keys(claim(store, now=when)) == ["a"]


def test_a_claim_returns_the_message_as_it_was_offered(store):
    offer = message("a", '{"x": 1}', queue="sms", priority=3, max_attempts=4, metadata='{"m": 1}', scheduled_at=at(-1))
    id_ = store.at(at(-2)).offer(offer).id

    claimed = claim_one(store, lanes=[Lane("sms", 3)])
    assert claimed.id == id_
    assert (claimed.queue, claimed.kind, claimed.key, claimed.priority) == ("sms", KIND, "a", 3)
    assert (claimed.attempt, claimed.max_attempts, claimed.generation) == (1, 4, 0)
    assert (claimed.scheduled_at, claimed.scheduled_at_initially, claimed.created_at) == (at(-1), at(-1), at(-2))
    assert (claimed.payload, claimed.metadata, claimed.errors) == ('{"x": 1}', '{"m": 1}', None)


def test_a_claim_leases_the_message_to_its_worker(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store, worker="w-7")

    row = live("a")
    assert (row.lease_token, row.leased_until, row.leased_by) == (claimed.token, NOW + LEASE, "w-7")
    assert (row.attempt, row.scheduled_at) == (1, NOW)


def test_without_now_leases_run_on_the_databases_clock(store):
    store.offer(message("a", scheduled_at=None))
    claim_one(store, now=None)

    assert abs(live("a").leased_until - timezone.now() - LEASE) < timedelta(seconds=5)
    assert Message.objects.leased().count() == 1


def test_every_claim_has_a_token_of_its_own(store):
    store.at(NOW).offer(message("a"))
    tokens = {claim_one(store, now=at(61 * turn)).token for turn in range(5)}

    assert len(tokens) == 5


# Leases


def test_a_leased_message_is_given_to_no_other_until_the_lease_ends(store):
    store.at(NOW).offer(message("a", '"intact"', max_attempts=3))
    first = claim_one(store)

    assert claim(store, now=at(59.999999), worker="second") == []
    second = claim_one(store, now=at(60), worker="second")
    assert (second.id, second.payload, second.attempt) == (first.id, '"intact"', 2)
    assert second.token != first.token
    assert live("a").leased_by == "second"


def test_an_expired_message_keeps_its_place_before_later_ones(store):
    store.at(NOW).offer(message("old"))
    claim_one(store)
    store.at(NOW).offer(message("new", scheduled_at=at(1)))

    assert keys(claim(store, 2, now=at(61))) == ["old", "new"]


# Order


def test_due_order_is_the_order_of_times_not_of_offers(store):
    for key, seconds in (("third", 3), ("first", 1), ("second", 2)):
        store.at(NOW).offer(message(key, scheduled_at=at(seconds)))

    assert keys(claim(store, now=at(10))) == ["first"]
    assert keys(claim(store, 5, now=at(10))) == ["second", "third"]


def test_equal_times_go_first_in_first_out(store):
    names = [f"{number}" for number in range(50)]
    for name in names:
        store.at(NOW).offer(message(name))

    assert keys(claim(store, 20)) + keys(claim(store, 40)) == names


def test_due_order_holds_within_a_batch_when_ids_are_in_another(store):
    seconds = [(number * 37) % 100 for number in range(100)]
    store.at(NOW).offer_many([message(f"{second}", scheduled_at=at(second)) for second in seconds])

    assert keys(claim(store, 100, now=at(100))) == [f"{second}" for second in range(100)]


def test_a_moved_message_takes_its_new_place(store):
    store.at(NOW).offer_many([message(key, scheduled_at=at(number)) for number, key in enumerate("abc")])
    store.at(NOW).offer(message("a", scheduled_at=at(1.5)))

    assert keys(claim(store, 3, now=at(5))) == ["b", "a", "c"]


def test_lanes_are_served_in_the_order_given(store):
    for key, priority, seconds in (("low", -5, -9), ("normal", 0, -5), ("high", 7, 0)):
        store.at(NOW).offer(message(key, priority=priority, scheduled_at=at(seconds)))
    lanes = [Lane("mail", 7), Lane("mail", 0), Lane("mail", -5)]

    assert keys(claim(store, 2, lanes=lanes)) == ["high", "normal"]
    assert keys(claim(store, 2, lanes=lanes)) == ["low"]


def test_lanes_of_several_queues_may_mix(store):
    for queue, priority in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        store.at(NOW).offer_many([message(f"{queue}{priority}{n}", queue=queue, priority=priority) for n in (1, 2)])
    lanes = [Lane("b", 1), Lane("a", 1), Lane("b", 0), Lane("a", 0)]

    assert keys(claim(store, 5, lanes=lanes)) == ["b11", "b12", "a11", "a12", "b01"]
    assert keys(claim(store, 5, lanes=lanes)) == ["b02", "a01", "a02"]


def test_only_the_given_lanes_are_served(store):
    store.at(NOW).offer_many([message("a", queue="a"), message("b", queue="b"), message("b1", queue="b", priority=1)])

    assert keys(claim(store, 9, lanes=[Lane("b", 0), Lane("none", 0)])) == ["b"]
    assert claim(store, 9, lanes=[]) == []


@pytest.mark.parametrize("extreme", [-100, 100, -32768, 32767])
def test_a_priority_may_be_as_low_or_high_as_it_gets(store, extreme):
    store.at(NOW).offer(message("a", priority=extreme))

    assert claim_one(store, lanes=[Lane("mail", extreme)]).priority == extreme


# How many


def test_a_claim_takes_as_many_as_asked(store):
    store.at(NOW).offer_many([message(f"{number}") for number in range(300)])

    taken = [len(claim(store, limit)) for limit in (0, -1, 1, 50, 100, 200, 1)]
    assert taken == [0, 0, 1, 50, 100, 149, 0]


def test_the_limit_is_that_of_all_lanes_together(store):
    lanes = [Lane("mail", priority) for priority in (2, 1, 0)]
    store.at(NOW).offer_many([message(priority=lane.priority) for lane in lanes for _ in range(4)])

    assert [claimed.priority for claimed in claim(store, 6, lanes=lanes)] == [2, 2, 2, 2, 1, 1]


# Floors


def test_a_watermark_skips_what_is_before_it_and_not_what_is_at_it(store):
    for seconds in (-3, -2, -1):
        store.at(NOW).offer(message(f"{seconds}", scheduled_at=at(seconds)))

    assert keys(claim(store, 9, lanes=[Lane("mail", 0, at(-2))])) == ["-2", "-1"]
    assert keys(claim(store, 9, lanes=[LANE])) == ["-3"]


def test_each_lane_has_a_watermark_of_its_own(store):
    for priority in (0, 1):
        store.at(NOW).offer_many(
            [message(f"{priority}{seconds}", priority=priority, scheduled_at=at(seconds)) for seconds in (-2, -1)],
        )
    lanes = [Lane("mail", 1, at(-1.5)), Lane("mail", 0)]

    assert keys(claim(store, 9, lanes=lanes)) == ["1-1", "0-2", "0-1"]


# A bad message among good ones


def test_a_message_that_can_not_be_read_is_set_aside_and_the_next_one_is_delivered(store):
    store.at(NOW).offer_many([message("unreadable", "\ufffd{not json"), message("good", "1")])
    settle(store, fail(claim_one(store), started=None, errors='["unreadable"]'))

    assert keys(claim(store)) == ["good"]
    dead = history(key="unreadable")
    assert (dead.outcome, dead.payload, dead.errors) == ("failed", "\ufffd{not json", '["unreadable"]')


def test_a_poisonous_message_neither_runs_hot_nor_blocks_and_ends_as_a_dead_letter(store):
    store.at(NOW).offer(message("poison", max_attempts=3))
    store.at(NOW).offer_many([message(f"{number}", scheduled_at=at(number)) for number in range(4)])
    order = []
    for second in range(8):
        for claimed in claim(store, 1, now=at(second)):
            order.append(claimed.key)
            bad, last = claimed.key == "poison", claimed.attempt == claimed.max_attempts
            outcome = retry(claimed, delay=2) if bad and not last else fail(claimed) if bad else succeed(claimed)
            settle(store, outcome, now=at(second))

    assert order == ["poison", "0", "1", "poison", "2", "3", "poison"]
    assert (history(key="poison").outcome, history(key="poison").attempts) == ("failed", 3)
    assert not Message.objects.exists()
