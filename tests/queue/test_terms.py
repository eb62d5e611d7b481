"""What one call may say beside its message: policy, priority, attempts, lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq import BatchedMessage, Topic
from delayedq.exceptions import InvalidMessage, InvalidQueue
from delayedq.models import Message
from tests.store.given import NOW, at, outcomes

SECOND = timedelta(seconds=1)


@pytest.fixture
def lanes(make):
    """A queue with three priorities."""
    return make(priorities=[5, -5])


def taken(queue, limit=99):
    return [envelope.key for envelope in queue.try_poll_many(limit)]


# Policies


@pytest.mark.parametrize(
    ("policy", "seconds", "outcome", "stored"),
    [
        ("replace", 9, "updated", (2, at(9))),
        ("keep", 9, "ignored", (1, at(5))),
        ("preserve_time", 9, "updated", (2, at(5))),
        ("earliest", 9, "updated", (2, at(5))),
        ("earliest", 1, "updated", (2, at(1))),
        ("latest", 9, "updated", (2, at(9))),
        ("latest", 1, "updated", (2, at(5))),
    ],
)
def test_an_offer_and_a_batch_say_what_is_replaced(queue, policy, seconds, outcome, stored):
    queue.offer_batch([BatchedMessage(None, key, 1, at(5)) for key in "ab"])

    assert queue.offer_or_update("a", 2, at(seconds), on_conflict=policy) == outcome
    (reply,) = queue.offer_batch([BatchedMessage(None, "b", 2, at(seconds), on_conflict=policy)])
    assert reply.outcome == outcome
    for key in "ab":
        reading = queue.read(key)
        assert (reading.payload, reading.scheduled_at) == stored


def test_what_can_not_update_keeps_whatever_the_policy(queue):
    queue.offer_or_update("a", 1, NOW)
    (reply,) = queue.offer_batch([BatchedMessage(None, "a", 2, NOW, can_update=False, on_conflict="latest")])
    assert (reply.outcome, queue.read("a").payload) == ("ignored", 1)


def test_a_topic_passes_on_what_is_said(alias, clock):
    topic = Topic("prices", ["audit"], clock=clock, priorities=[5])
    topic.publish(1, "gold", at(5))
    assert topic.publish(2, "gold", at(9), on_conflict="earliest", priority=5, max_attempts=3) == {"audit": "updated"}
    stored = Message.objects.get()
    assert (stored.scheduled_at, stored.priority, stored.max_attempts) == (at(5), 5, 3)


# Priorities


def test_a_higher_priority_is_polled_first(lanes):
    for key, priority, seconds in (("low", -5, -3), ("late", 0, -1), ("early", 0, -2), ("urgent", 5, 0)):
        lanes.offer_or_update(key, 1, at(seconds), priority=priority)

    assert lanes.try_poll().key == "urgent"
    assert taken(lanes) == ["early", "late", "low"]


def test_a_priority_that_is_not_due_holds_up_nobody(lanes, clock):
    lanes.offer_batch([BatchedMessage(None, "urgent", 1, at(5), priority=5), BatchedMessage(None, "a", 1, NOW)])
    assert taken(lanes) == ["a"]
    clock.move(5)
    assert lanes.poll().key == "urgent"


def test_an_offer_moves_its_message_to_its_priority(lanes):
    lanes.offer_or_update("a", 1, NOW, priority=-5)
    assert lanes.offer_or_update("a", 1, NOW, priority=5) == "updated"
    assert lanes.offer_or_update("a", 1, NOW, priority=5) == "ignored"
    assert lanes.try_poll().claimed.priority == 5


def test_filters_keep_to_priorities_and_limits(lanes):
    for number in range(9):
        lanes.offer_or_update(f"{number}", {"even": number % 2 == 0}, NOW, priority=(5, 0, -5)[number // 3])
    assert taken(lanes.filter(payload__even=True), 3) == ["0", "2", "4"]
    assert taken(lanes.filter(payload__even=True)) == ["6", "8"]


def test_waiting_wakes_for_each_priority(make):
    queue = make(clock=None, priorities=[5])
    queue.offer_or_update("urgent", 1, queue.leases.store.now() + SECOND / 5, priority=5)
    assert queue.poll(timeout=30 * SECOND).key == "urgent"


@pytest.mark.parametrize("priority", [1, -5, 5.0, True, None, "5"])
def test_a_priority_that_is_not_declared_is_refused(make, priority):
    queue = make(priorities=[5])
    with pytest.raises(InvalidMessage, match=r"priorities 5, 0, and not"):
        queue.offer_or_update("a", 1, NOW, priority=priority)
    with pytest.raises(InvalidMessage, match=r"priorities 5, 0, and not"):
        queue.offer_batch([BatchedMessage(None, "a", 1, NOW, priority=priority)])
    assert not queue.contains_message("a")


@pytest.mark.parametrize("priorities", [[101], [-101], [1.5], [True], "5", 5, None], ids=repr)
def test_what_is_no_priority_is_refused(make, priorities):
    with pytest.raises(InvalidQueue, match="numbers from -100 to 100"):
        make(priorities=priorities)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_poll_is_one_statement_whatever_the_priorities(queue, lanes, connection):
    for polled in (queue, lanes):
        with CaptureQueriesContext(connection) as captured:
            polled.try_poll()
        assert [query["sql"].split()[0] for query in captured] == ["UPDATE"]


# Attempts


def test_a_message_may_have_attempts_of_its_own(queue):
    queue.offer_or_update("a", 1, NOW, max_attempts=1)
    queue.offer_if_not_exists("b", 1, NOW, max_attempts=2)
    for envelope in queue.try_poll_many(2):
        envelope.reject()

    assert (outcomes(), taken(queue)) == (["failed"], ["b"])


@pytest.mark.parametrize("attempts", [0, -1, 32_001, 1.5, True, "3"])
def test_what_is_no_number_of_attempts_is_refused(queue, attempts):
    with pytest.raises(InvalidMessage, match="max_attempts"):
        queue.offer_or_update("a", 1, NOW, max_attempts=attempts)
    assert not queue.contains_message("a")


@pytest.mark.parametrize("policy", ["update", None, 3])
def test_what_is_no_policy_is_refused(queue, policy):
    with pytest.raises(InvalidMessage, match="on_conflict is one of replace, keep"):
        queue.offer_or_update("a", 1, NOW, on_conflict=policy)
    with pytest.raises(InvalidMessage, match="on_conflict is one of replace, keep"):
        queue.offer_batch([BatchedMessage(None, "a", 1, NOW, on_conflict=policy)])
    assert not queue.contains_message("a")


# Leases


@pytest.mark.parametrize(
    "poll",
    [
        lambda queue: queue.try_poll(lease=9 * SECOND),
        lambda queue: queue.try_poll_many(1, lease=9 * SECOND),
        lambda queue: queue.poll(lease=9 * SECOND),
        lambda queue: asyncio.run(queue.apoll(lease=9 * SECOND)),
        lambda queue: queue.filter(payload__x=1).try_poll(lease=9 * SECOND),
    ],
    ids=["try_poll", "try_poll_many", "poll", "apoll", "filter"],
)
def test_a_poll_may_have_a_lease_of_its_own(queue, clock, poll):
    queue.offer_or_update("a", {"x": 1}, NOW)
    poll(queue)
    clock.move(8.999)
    assert queue.try_poll() is None
    clock.move(0.001)
    assert queue.try_poll().attempt == 2
    clock.move(59)
    assert queue.try_poll() is None


def test_the_body_of_a_transaction_may_have_a_lease_of_its_own(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    with queue.transaction(lease=9 * SECOND):
        assert Message.objects.get().leased_until == at(9)


@pytest.mark.parametrize("lease", [timedelta(0), -SECOND, timedelta.max, 60, "a minute"], ids=repr)
def test_what_is_no_lease_is_refused(queue, lease):
    queue.offer_or_update("a", 1, NOW)
    with pytest.raises(InvalidQueue, match="lease"):
        queue.try_poll(lease=lease)
    assert queue.try_poll().attempt == 1
