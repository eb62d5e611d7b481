"""Sizes of limits: how many messages may wait and be in flight, and what becomes of an offer beyond that."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq.exceptions import QueueFull
from delayedq.limits.rules import Limit, OnFull, Size, channel_of
from delayedq.limits.sizes import LOOKED_AT, forget_unused
from delayedq.models import ChannelMessage, ChannelNotice, ChannelSize, FinishedMessage, LimitState, Message
from delayedq.store import operator_store
from delayedq.store.operator import Move, Revival, Seen
from delayedq.store.protocol import GiveBack, OfferOutcome, OnConflict
from tests.limits.channels import claims, finish, in_channel
from tests.store.given import NOW, at, together, undone

CREATED, UPDATED, IGNORED, DROPPED = OfferOutcome


ONE_BY_ONE = ("INSERT INTO delayedq_finishedmessage", "DELETE FROM delayedq_message", "INSERT INTO delayedq_message ")


def sized(channel, most=2, key=None, on_full=OnFull.DROP, scope="", **fields):
    return in_channel(channel, key, sizes=(Size(scope, most, on_full),), **fields)


def offer(store, *offers, now=NOW, policy=OnConflict.REPLACE):
    return [one.outcome for one in store.at(now).offer_many(offers, policy)]


def live():
    return Counter(channel_of(metadata) for metadata in Message.objects.values_list("metadata", flat=True))


def cancel_all_of(store, offers):
    """Without a limit in their way; their places stay until a claim comes."""
    store.at(NOW).offer_many([one._replace(sizes=()) for one in offers])
    rows = Message.objects.filter(key=None)
    operator_store(store.alias).at(NOW).cancel(
        [Seen._make(getattr(one, name) for name in Seen._fields) for one in rows]
    )


# When it is full


def test_an_offer_beyond_the_size_is_dropped_and_leaves_nothing(store):
    assert offer(store, sized("a"), sized("a")) == [CREATED, CREATED]
    assert store.at(NOW).offer(sized("a", key="third")) == (DROPPED, None, None, 2)
    assert (live(), ChannelMessage.objects.count(), ChannelNotice.objects.count()) == ({"a": 2}, 2, 1)


def test_other_channels_have_room_of_their_own(store):
    assert offer(store, *[sized("a")] * 3, *[sized("b")] * 3) == [CREATED, CREATED, DROPPED] * 2


def test_what_is_in_flight_counts_until_it_ends(store):
    offer(store, sized("a"), sized("a"))
    first, second = claims(store)
    assert offer(store, sized("a")) == [DROPPED]
    finish(store, first)
    assert offer(store, sized("a"), sized("a")) == [CREATED, DROPPED]
    store.at(NOW).settle([GiveBack(second, charged=True, started=1.0)], "first")
    assert offer(store, sized("a")) == [DROPPED]


def test_what_was_cancelled_makes_room_also_before_a_claim_sees_it(store):
    offer(store, sized("a", key="a"), sized("a"))
    assert store.at(NOW).unschedule("tests.remind", "a")
    assert offer(store, sized("a"), sized("a")) == [CREATED, DROPPED]


@pytest.mark.parametrize("on_full", list(OnFull))
def test_a_batch_finds_all_the_room_that_cancelled_messages_have_left(store, on_full):
    """Also where their places seemed to leave room enough when it began."""
    ten = partial(sized, most=10, on_full=on_full)
    offer(store, *[ten("a", key=key) for key in "123456"])
    assert all(store.at(NOW).unschedule("tests.remind", key) for key in "123")

    assert offer(store, *[ten("a")] * 7, now=at(2)) == [CREATED] * 7
    assert live() == {"a": 10}


def test_an_offer_that_rolls_back_takes_no_room(store, alias):
    with undone(alias):
        offer(store, sized("a"), sized("a"))
    assert offer(store, sized("a"), sized("a")) == [CREATED, CREATED]


def test_messages_of_the_future_count_too(store):
    assert offer(store, *[sized("a", scheduled_at=at(3600))] * 3) == [CREATED, CREATED, DROPPED]


def test_what_was_moved_to_another_queue_of_its_task_counts_in_a_shared_limit(store):
    offer(store, *[sized("a", key=key, scope="the-api") for key in "12"])
    (seen, _) = [Seen._make(getattr(one, name) for name in Seen._fields) for one in Message.objects.order_by("key")]
    assert operator_store(store.alias).at(NOW).move([Move(seen, at(3600), "elsewhere", 0)]) == {seen.id}
    claims(store, 1, now=at(1))
    assert offer(store, sized("a", scope="the-api"), now=at(2)) == [DROPPED]


# Keys


@pytest.mark.parametrize("policy", list(OnConflict))
def test_a_replacement_is_no_new_message(store, policy):
    offer(store, sized("a", key="1"), sized("a", key="2"))
    replaced = offer(store, sized("a", key="1", payload="[1]"), policy=policy)
    assert replaced == [IGNORED if policy is OnConflict.KEEP else UPDATED]
    assert offer(store, sized("a", key="3"), policy=policy) == [DROPPED]


def test_a_key_that_occurs_twice_in_a_batch_is_one_message(store):
    twice = [sized("a", 1, key="1"), sized("a", 1, key="1", payload="[1]"), sized("a", 1, key="2")]
    assert offer(store, *twice) == [CREATED, UPDATED, DROPPED]


def test_a_message_that_moves_to_a_full_channel_stays_as_it_is(store):
    offer(store, sized("a", key="1"), sized("b"), sized("b"))
    assert offer(store, sized("b", key="1", payload="[1]")) == [DROPPED]
    assert Message.objects.get(key="1").payload == "{}"
    assert offer(store, sized("b", key="1"), policy=OnConflict.KEEP) == [IGNORED]
    assert live() == {"a": 1, "b": 2}


def test_a_message_that_leaves_a_channel_makes_room_there(store):
    offer(store, sized("a", key="1"), sized("a"))
    assert offer(store, sized("b", key="1")) == [UPDATED]
    assert offer(store, sized("a"), sized("a")) == [CREATED, DROPPED]


def test_a_message_from_before_the_channels_is_new_in_one(store):
    store.offer(in_channel(None, key="1"))
    assert offer(store, sized("a", 1), sized("a", 1, key="1")) == [CREATED, DROPPED]


# Scopes


def test_a_scope_counts_all_of_its_channels_and_tasks(store):
    queue = partial(sized, scope="mail", most=3)
    assert offer(store, queue("a"), queue("b", kind="tests.other")) == [CREATED, CREATED]
    assert offer(store, queue("c", kind="tests.third"), queue("a")) == [CREATED, DROPPED]


def test_a_size_that_comes_later_counts_what_claims_have_seen(store):
    offer(store, *[in_channel("a", kind=kind) for kind in ("tests.other", "tests.third")])
    claims(store, 1)
    assert offer(store, sized("a", 3, scope="mail"), sized("a", 3, scope="mail")) == [CREATED, DROPPED]


def test_of_several_limits_all_need_room_and_none_is_taken_for_another(store):
    def both(channel):
        return in_channel(channel, sizes=(Size("mail", 3, OnFull.DROP), Size("", 1, OnFull.DROP)))

    assert offer(store, both("a"), both("a"), both("b"), both("c"), both("d")) == [
        *(CREATED, DROPPED, CREATED, CREATED, DROPPED)
    ]


# The size comes back


def test_the_size_comes_back_of_the_limit_with_the_least_room(store):
    sizes = (Size("mail", 100, OnFull.DROP), Size("", 3, OnFull.DROP))
    offered = store.at(NOW).offer_many([in_channel(channel, sizes=sizes) for channel in "aaba"])
    assert [one.size for one in offered] == [1, 2, 1, 3]
    assert store.offer(in_channel("a")).size is None


def test_the_size_follows_what_ends(store):
    offer(store, *[sized("a", 10)] * 5)
    finish(store, *claims(store, 4))
    assert store.at(at(2)).offer(sized("a", 10)).size == 2


# on_full


def test_raise_names_the_limit_and_stores_nothing(store, alias):
    loud = partial(sized, on_full=OnFull.RAISE)
    with transaction.atomic(using=alias):
        with pytest.raises(QueueFull, match=r"The channel 'a' of tests.remind in mail has 2 messages, and a size of 2"):
            offer(store, *[loud("a")] * 3)
        offer(store, loud("a"))
    assert live() == {"a": 1}


def test_the_oldest_makes_room_for_a_new_one(store):
    new = partial(sized, "a", on_full=OnFull.DROP_OLDEST)
    offer(store, new(key="later", scheduled_at=at(9)), new(key="first", scheduled_at=at(1)))
    assert offer(store, new(key="new")) == [CREATED]
    assert set(Message.objects.values_list("key", flat=True)) == {"later", "new"}
    assert FinishedMessage.objects.get().key == "first"
    assert FinishedMessage.objects.get().outcome == "cancelled"


def test_a_key_that_made_room_is_a_new_message_later_in_the_batch(store):
    offer(store, sized("a", 1, "k", OnFull.DROP_OLDEST))
    given = [sized("a", 1, None, OnFull.DROP_OLDEST), sized("a", 1, "k", OnFull.DROP_OLDEST, payload="1")]
    assert offer(store, *given) == [CREATED, CREATED]
    assert live() == {"a": 1}


def test_what_is_in_flight_makes_no_room(store):
    new = partial(sized, "a", on_full=OnFull.DROP_OLDEST)
    offer(store, new(), new())
    first, _ = claims(store)
    assert offer(store, new()) == [DROPPED]
    finish(store, first)
    assert offer(store, new(), new(key="last")) == [CREATED, CREATED]
    assert Message.objects.filter(key="last").exists()


def test_of_a_batch_the_last_are_left(store):
    new = partial(sized, "a", on_full=OnFull.DROP_OLDEST)
    assert offer(store, *[new(key=str(number)) for number in range(5)]) == [CREATED] * 5
    assert set(Message.objects.values_list("key", flat=True)) == {"3", "4"}


def test_the_newest_is_left_however_many_were_dropped_before_a_claim_comes(store):
    new = partial(sized, "a", 1, on_full=OnFull.DROP_OLDEST)
    offer(store, new(key="first"))
    cancel_all_of(store, [new() for _ in range(LOOKED_AT + 10)])
    assert offer(store, *[new(key=str(number)) for number in range(3)]) == [CREATED] * 3
    assert offer(store, new(key="last")) == [CREATED]
    assert set(Message.objects.values_list("key", flat=True)) == {"last"}
    assert not ChannelMessage.objects.filter(
        message_id__in=FinishedMessage.objects.filter(key="2").values("id")
    ).exists()


def test_a_batch_that_drops_many_takes_as_many_statements_as_one_that_drops_a_few(store, alias):
    new = partial(sized, "a", 60, on_full=OnFull.DROP_OLDEST)

    def statements(number):
        with CaptureQueriesContext(connections[alias]) as captured:
            assert offer(store, *[new(scheduled_at=at(-1)) for _ in range(number)]) == [CREATED] * number
        assert live() == {"a": 60}
        # SQLite, which has no round trips, stores and ends them one by one.
        return len([one for one in captured if not one["sql"].lstrip().startswith(ONE_BY_ONE)])

    offer(store, *[new() for _ in range(60)])
    statements(2)
    assert statements(50) <= statements(2) + 2
    assert statements(100) <= statements(2) + 2


def test_what_was_due_first_makes_room_first_whether_it_is_old_or_new(store):
    new = partial(sized, "a", 3, on_full=OnFull.DROP_OLDEST)
    offer(store, *[new(key=f"old {n}", scheduled_at=at(n)) for n in (1, 5, 9)])
    times = {"new 3": 3, "new 0": 0, "new 7": 7, "new 8": 8, "new 2": 2}
    assert offer(store, *[new(key=key, scheduled_at=at(n)) for key, n in times.items()]) == [CREATED] * 5
    # In turn, these make room: old 1, new 3, new 0, old 5, new 7.
    assert set(Message.objects.values_list("key", flat=True)) == {"old 9", "new 8", "new 2"}


def test_a_message_that_was_replaced_in_the_batch_makes_room_as_it_is_due_now(store):
    new = partial(sized, "a", 2, on_full=OnFull.DROP_OLDEST)
    offer(store, new(key="x", scheduled_at=at(1)), new(key="y", scheduled_at=at(2)))
    given = [("z", 3), ("y", 9), ("w", 4), ("v", 5)]
    outcomes = offer(store, *[new(key=key, scheduled_at=at(n)) for key, n in given])
    assert outcomes == [CREATED, UPDATED, CREATED, CREATED]
    assert set(Message.objects.values_list("key", flat=True)) == {"y", "v"}


# At the same time


def test_offers_at_the_same_time_never_exceed_the_size(store):
    outcomes = together(*[partial(offer, store, sized("a", 10), sized("b", 10), sized("a", 10)) for _ in range(8)])
    assert live() == {"a": 10, "b": 8}
    assert Counter(one for each in outcomes for one in each) == {CREATED: 18, DROPPED: 6}


def test_offers_and_claims_at_the_same_time_never_exceed_it(store):
    def produce():
        return [offer(store, sized("a", 5))[0] for _ in range(10)]

    def consume():
        return sum(len(finish(store, *claims(store, 2)) or ()) >= 0 and live()["a"] <= 5 for _ in range(10))

    assert together(produce, produce, consume)[2] == 10
    assert live()["a"] <= 5


def test_offers_of_a_long_transaction_wait_for_each_other_and_for_nothing_else(store, alias):
    with transaction.atomic(using=alias):
        offer(store, sized("a", 1))
        if store.database.connection.vendor != "sqlite":  # there, one writes at a time
            assert together(partial(offer, store, in_channel("a"))) == [[CREATED]]
            assert together(partial(offer, store, sized("b", 1))) == [[CREATED]]
            assert len(together(partial(claims, store))[0]) == 2
    assert offer(store, sized("a", 1)) == [DROPPED]


# Live


def test_a_size_that_is_set_live_holds_at_once_and_can_be_lifted(store, alias):
    state = LimitState.objects.using(alias)
    state.create(scope="tests.remind", channel="a", definition=json.dumps(Limit(size=1).as_json()))
    assert offer(store, *[sized("a", 2)] * 2, *[sized("b", 2)] * 2) == [CREATED, DROPPED, CREATED, CREATED]
    state.update(definition=json.dumps(Limit(concurrency=1).as_json()))
    assert offer(store, *[sized("a", 2)] * 3) == [CREATED] * 3
    state.all().delete()
    assert offer(store, sized("a", 2)) == [DROPPED]


# What operators do, and what is left


def test_a_redrive_is_not_refused_and_counts(store):
    offer(store, sized("a", 1, key="1"))
    message = Message.objects.get()
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    operator = operator_store(store.alias)
    operator.cancel([seen])
    offer(store, sized("a", 1))
    assert operator.revive([Revival(message.pk)], "cancelled")
    assert offer(store, sized("a", 1), now=at(2)) == [DROPPED]
    assert live() == {"a": 2}


def test_counters_that_are_not_used_are_forgotten(store):
    offer(store, sized("a"), sized("b"), sized("a", scope="mail"))
    forget_unused(store.at(NOW).database)
    assert ChannelSize.objects.count() == 3
    forget_unused(store.at(NOW + timedelta(hours=2)).database)
    assert ChannelSize.objects.count() == 1
    assert offer(store, sized("a"), sized("a")) == [DROPPED, DROPPED]


def test_offers_without_a_size_do_not_look_for_one(store, alias):
    with CaptureQueriesContext(connections[alias]) as captured:
        store.at(NOW).offer(in_channel("a"))
    assert not [one["sql"] for one in captured if "channelsize" in one["sql"] or "limitstate" in one["sql"]]
