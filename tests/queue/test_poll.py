"""Ways out of the queue, and the lease on what was polled (B1 to B9, B12 to B15)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest

from delayedq.models import Message
from delayedq.queue import BatchedMessage, DeliveryType
from tests.queue.given import Boom, boom
from tests.store.given import NOW, at, together

FIRST, AGAIN = DeliveryType
DONE, SUPERSEDED, LOST = "acknowledged", "superseded", "lease_lost"


def fill(queue, count, seconds=0):
    queue.offer_batch([BatchedMessage(None, f"{number}", number, at(seconds)) for number in range(count)])


def test_an_empty_queue_gives_nothing(queue):
    assert queue.try_poll() is None


def test_a_message_is_given_out_exactly_from_its_time_on(queue, clock):
    queue.offer_or_update("a", {"b": 1}, at(5))
    clock.move(4.999)
    assert queue.try_poll() is None
    clock.move(0.001)

    envelope = queue.try_poll()
    assert (envelope.key, envelope.payload, envelope.scheduled_at) == ("a", {"b": 1}, at(5))
    assert (envelope.attempt, envelope.delivery_type, envelope.polled_at) == (1, FIRST, at(5))
    assert envelope.state is None


def test_messages_come_by_due_time_and_equal_ones_as_they_were_offered(queue, clock):
    for key, seconds in {"third": 3, "first": 1, "second": 2, "also second": 2}.items():
        queue.offer_or_update(key, key, at(seconds))
    clock.move(3)

    assert [queue.try_poll().key for _ in range(4)] == ["first", "second", "also second", "third"]


def test_an_acknowledged_message_is_gone_and_the_answer_stays_the_same(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()

    assert [envelope.acknowledge(), envelope.acknowledge()] == [DONE, DONE]
    assert not queue.contains_message("a")
    queue.offer_or_update("a", 1, NOW)
    assert envelope.acknowledge() == DONE
    assert queue.contains_message("a")


def test_a_polled_message_is_given_to_no_other_until_its_lease_ends(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    queue.try_poll()
    clock.move(59)
    assert queue.try_poll() is None
    clock.move(2)

    again = queue.try_poll()
    assert (again.payload, again.delivery_type, again.attempt) == (1, AGAIN, 2)


def test_a_late_acknowledgement_is_refused_and_reported_once_another_has_the_message(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    late = queue.try_poll()
    clock.move(61)
    holder = queue.try_poll()

    assert late.acknowledge() == LOST
    assert queue.contains_message("a")
    assert holder.acknowledge() == DONE
    assert not queue.contains_message("a")


def test_a_late_acknowledgement_counts_if_no_other_has_polled_the_message(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    late = queue.try_poll()
    clock.move(61)

    assert late.acknowledge() == DONE
    assert queue.try_poll() is None


def test_the_acknowledgement_of_a_replaced_message_leaves_the_replacement(queue):
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()
    queue.offer_or_update("a", 2, NOW)

    assert envelope.acknowledge() == SUPERSEDED
    assert queue.try_poll().payload == 2


def test_the_acknowledgement_of_a_dropped_message_tells_that_it_is_gone(queue):
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()
    queue.drop_message("a")

    assert envelope.acknowledge() == LOST


# Many at once


def test_many_from_an_empty_queue_are_none(queue):
    batch = queue.try_poll_many(5)
    assert (batch.payload, len(batch), batch.acknowledge()) == ([], 0, [])


@pytest.mark.parametrize("limit", [0, -3])
def test_no_limit_to_speak_of_takes_nothing(queue, limit):
    fill(queue, 3)

    assert queue.try_poll_many(limit).acknowledge() == []
    assert queue.count() == 3


@pytest.mark.parametrize(
    ("there", "limit", "taken"), [(3, 5, 3), (10, 5, 5), (50, 50, 50), (100, 100, 100), (250, 250, 250)]
)
def test_many_are_at_most_as_many_as_asked(queue, there, limit, taken):
    fill(queue, there)
    batch = queue.try_poll_many(limit)

    assert batch.payload == list(range(taken))
    assert batch.delivery_type == FIRST
    assert batch.acknowledge() == [DONE] * taken
    assert batch.acknowledge() == [DONE] * taken
    assert queue.count() == there - taken


def test_many_come_by_due_time_whatever_their_ids(queue, clock):
    for number in range(10):
        queue.offer_or_update(None, number, at(-number))

    assert queue.try_poll_many(10).payload == list(reversed(range(10)))


def test_a_batch_with_any_redelivery_says_so(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    queue.try_poll()
    clock.move(61)
    queue.offer_or_update("b", 2, clock())

    batch = queue.try_poll_many(2)
    assert [envelope.delivery_type for envelope in batch] == [AGAIN, FIRST]
    assert batch.delivery_type == AGAIN


def test_what_was_settled_alone_is_left_out_of_what_its_batch_settles(queue):
    fill(queue, 4)
    batch = queue.try_poll_many(4)
    batch.envelopes[0].reject()
    queue.offer_or_update("1", "new", NOW)
    queue.drop_message("2")

    assert batch.acknowledge() == [DONE, SUPERSEDED, LOST, DONE]
    assert sorted(queue.try_poll_many(9).payload, key=str) == [0, "new"]


def test_a_batch_settles_in_one_with_block_and_gives_back_on_errors(queue):
    fill(queue, 2)
    with pytest.raises(Boom), queue.try_poll_many(2):
        boom()
    with queue.try_poll_many(2) as batch:
        assert batch.delivery_type == AGAIN
    assert queue.try_poll() is None


def test_a_batch_tells_the_error_that_gave_it_back(queue):
    fill(queue, 2)
    with pytest.raises(Boom), queue.try_poll_many(2):
        boom()
    assert ["boom" in errors for errors in Message.objects.values_list("errors", flat=True)] == [True, True]


def test_what_only_stops_the_program_is_no_attempt_of_a_batch(queue):
    fill(queue, 2)
    with pytest.raises(KeyboardInterrupt), queue.try_poll_many(2):
        raise KeyboardInterrupt
    assert queue.try_poll_many(2).release() == [DONE] * 2
    assert queue.try_poll_many(2).delivery_type == FIRST


def test_a_batch_can_be_given_back_for_later(queue, clock):
    fill(queue, 3)
    assert queue.try_poll_many(3).reject(timedelta(seconds=10)) == [DONE] * 3
    assert queue.try_poll() is None
    clock.move(10)
    assert len(queue.try_poll_many(9)) == 3


# Together


def drain(queue, limit):
    taken = []
    while batch := queue.try_poll_many(limit):
        assert len(batch) <= limit
        assert set(batch.acknowledge()) == {DONE}
        taken += batch.payload
    return taken


def test_no_batch_is_larger_than_asked_and_none_overlap_among_eight_consumers(queue):
    fill(queue, 200)
    taken = together(*[partial(drain, queue, 7)] * 8)

    # A consumer may find nothing while others have locked what there is, and stop too early.
    taken.append(drain(queue, 7))
    assert Counter(number for some in taken for number in some) == dict.fromkeys(range(200), 1)
    assert queue.count() == 0


def test_four_producers_of_the_same_keys_and_four_consumers(queue):
    def produce():
        return [queue.offer_if_not_exists(f"{number}", number, NOW) for number in range(100)]

    created = Counter(outcome for outcomes in together(*[produce] * 4) for outcome in outcomes)
    assert created == {"created": 100, "ignored": 300}

    taken = [*together(*[partial(drain, queue, 1)] * 4), drain(queue, 1)]
    assert sorted(number for some in taken for number in some) == list(range(100))


def test_producers_beside_consumers_lose_nothing(queue):
    def produce(start):
        for number in range(start, start + 50):
            queue.offer_or_update(f"{number}", number, NOW)
        return []

    taken = together(partial(produce, 0), partial(produce, 50), *[partial(drain, queue, 5)] * 2)
    taken.append(drain(queue, 5))
    assert sorted(number for some in taken for number in some) == list(range(100))


def test_messages_are_taken_accepted_and_rejected_in_turns(queue):
    """The script of the third seed: 4, 3, 3, 1, 0."""
    fill(queue, 4)
    counts = [queue.count()]
    queue.try_poll().acknowledge()
    counts.append(queue.count())
    queue.try_poll_many(2).reject()
    counts.append(queue.count())
    queue.try_poll_many(2).acknowledge()
    counts.append(queue.count())
    assert queue.try_poll_many(2).acknowledge() == [DONE]
    assert [*counts, queue.count()] == [4, 3, 3, 1, 0]


@pytest.mark.parametrize("second", range(0, 60, 4))
def test_a_lease_lasts_as_long_whenever_in_a_minute_it_was_taken(queue, clock, second):
    clock.move(second + 0.9)
    queue.offer_or_update("a", 1, NOW)
    queue.try_poll()
    clock.move(59.999)
    assert queue.try_poll() is None
    clock.move(0.001)
    assert queue.try_poll().attempt == 2
