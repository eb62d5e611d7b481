"""Reading without a lease, dropping, and keeping queues apart (B5, C1 to C3)."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction

from delayedq.exceptions import InvalidKey
from delayedq.models import Message
from delayedq.queue import CONFIRMATION, TEXT
from tests.store.given import NOW, at, outcomes, together, undone

DONE, SUPERSEDED, LOST, BUSY = "acknowledged", "superseded", "lease_lost", "busy"


# Read


def test_nothing_is_read_under_a_key_that_is_not_there(queue):
    assert queue.read("a") is None


def test_a_message_of_the_future_is_read_and_not_leased(queue, clock):
    queue.offer_or_update("a", {"b": 1}, at(60))
    reading = queue.read("a")

    assert (reading.key, reading.payload, reading.scheduled_at) == ("a", {"b": 1}, at(60))
    assert (reading.attempts, reading.state) == (0, None)
    clock.move(60)
    assert queue.try_poll().attempt == 1


def test_what_was_read_is_acknowledged_only_if_it_is_unchanged(queue):
    for key in "abc":
        queue.offer_or_update(key, 1, at(60))
    readings = [queue.read(key) for key in "abc"]
    queue.offer_or_update("a", 1, at(60))
    queue.offer_or_update("b", 2, at(60))
    queue.offer_or_update("c", 1, at(61))

    assert [reading.acknowledge() for reading in readings] == [DONE, SUPERSEDED, SUPERSEDED]
    assert [reading.acknowledge() for reading in readings] == [DONE, SUPERSEDED, SUPERSEDED]
    assert [queue.contains_message(key) for key in "abc"] == [False, True, True]
    assert outcomes() == ["succeeded"]


def test_what_was_read_is_not_acknowledged_while_it_is_held(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    early, envelope = queue.read("a"), queue.try_poll()

    assert early.acknowledge() == queue.read("a").acknowledge() == LOST
    clock.move(61)
    assert queue.read("a").acknowledge() == DONE
    assert envelope.acknowledge() == LOST


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_what_was_read_and_is_locked_is_busy_after_a_lease(make, alias):
    queue = make(lease=timedelta(seconds=0.2))
    queue.offer_or_update("a", 1, NOW)
    reading, locked, answered = queue.read("a"), Event(), Event()

    def lock():
        with undone(alias):
            queue.offer_or_update("a", 2, NOW)
            locked.set()
            assert answered.wait(10)

    def acknowledge():
        assert locked.wait(10)
        answer = reading.acknowledge()
        answered.set()
        return answer

    assert together(lock, acknowledge)[1] == BUSY
    assert reading.acknowledge() == DONE


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_acknowledging_what_was_read_waits_for_the_transaction_that_has_locked_it(queue, alias):
    queue.offer_or_update("a", 1, NOW)
    reading, locked = queue.read("a"), Event()

    def lock():
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 2, NOW)
            locked.set()
            time.sleep(0.2)

    def acknowledge():
        assert locked.wait(10)
        return reading.acknowledge()

    assert together(lock, acknowledge)[1] == SUPERSEDED
    assert queue.try_poll().payload == 2


def test_what_was_read_and_ended_since_is_told_to_be_gone(queue):
    queue.offer_or_update("a", 1, NOW)
    reading = queue.read("a")
    queue.drop_message("a")
    queue.offer_or_update("a", 1, NOW)

    assert reading.acknowledge() == LOST
    assert queue.contains_message("a")


def test_a_payload_that_can_not_be_read_says_so(queue):
    queue.offer_or_update("a", 1, NOW)
    Message.objects.update(payload="{")
    with pytest.raises(ValueError, match="not readable JSON"):
        queue.read("a")


# Count, contains, browse


def test_what_is_held_is_contained_but_not_counted(queue, clock):
    queue.offer_or_update("a", 1, NOW)
    queue.offer_or_update("b", 2, at(60))
    queue.try_poll()

    assert (queue.count(), list(queue.browse())) == (1, [2])
    assert queue.contains_message("a")
    clock.move(61)
    assert (queue.count(), list(queue.browse())) == (2, [1, 2])


def test_browsing_takes_nothing_and_leaves_out_what_can_not_be_read(queue):
    for number in range(4):
        queue.offer_or_update(f"{number}", number, at(-number))
    Message.objects.filter(key="2").update(payload="{")

    assert list(queue.browse()) == [3, 1, 0]
    assert queue.count() == 4


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_what_is_held_is_not_counted_in_any_time_zone_of_the_server(make, connection):
    queue = make(clock=None)
    queue.offer_or_update("a", 1)
    queue.try_poll()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+09:00'")
    try:
        assert queue.count() == 0
    finally:
        connection.close()


# Drop


def test_a_message_is_dropped_by_its_key_also_while_it_is_held(queue):
    queue.offer_or_update("a", 1, NOW)
    queue.offer_or_update("b", 2, NOW)
    envelope = queue.try_poll()

    assert queue.drop_message("a")
    assert not queue.drop_message("a")
    assert envelope.acknowledge() == LOST
    assert queue.count() == 1


@pytest.mark.parametrize("key", [None, 5, "", "a\0b", "\ud800", "x" * 201])
@pytest.mark.parametrize("verb", ["read", "contains_message", "drop_message"])
def test_what_is_no_key_finds_nothing_and_drops_nothing(queue, verb, key):
    queue.offer_or_update(None, 1, NOW)
    queue.offer_or_update("5", 1, NOW)
    with pytest.raises(InvalidKey):
        getattr(queue, verb)(key)
    assert queue.count() == 2


def test_all_messages_are_dropped_and_counted(queue, make):
    other = make("others")
    for key in ("a", "b", None):
        queue.offer_or_update(key, 1, NOW)
        other.offer_or_update(key, 1, NOW)
    queue.try_poll()

    assert queue.drop_all_messages(CONFIRMATION) == 3
    assert queue.drop_all_messages(CONFIRMATION) == 0
    assert other.count() == 3
    assert outcomes() == ["cancelled"] * 3


@pytest.mark.parametrize("words", ["", "yes", CONFIRMATION.lower(), f"{CONFIRMATION} "])
def test_all_messages_are_dropped_only_at_the_exact_words(queue, words):
    queue.offer_or_update("a", 1, NOW)
    with pytest.raises(ValueError, match="I know what I'm doing"):
        queue.drop_all_messages(words)
    assert queue.count() == 1


# Apart


def test_two_queues_with_the_same_keys_know_nothing_of_each_other(make):
    first, second = make("first"), make("second")
    first.offer_or_update("a", 1, NOW)
    assert second.offer_if_not_exists("a", 2, NOW) == "created"

    assert [queue.read("a").payload for queue in (first, second)] == [1, 2]
    assert first.try_poll().acknowledge() == DONE
    assert first.try_poll() is None
    assert not first.contains_message("a")
    assert not first.drop_message("a")
    assert list(second.browse()) == [2]
    assert second.try_poll().payload == 2


def test_queues_of_one_name_and_two_types_know_nothing_of_each_other(make):
    numbers, texts = make("mixed"), make("mixed", TEXT)
    numbers.offer_or_update("a", 1, NOW)
    assert texts.offer_or_update("a", "one", NOW) == "created"

    assert numbers.try_poll_many(9).payload == [1]
    assert texts.try_poll_many(9).payload == ["one"]


def test_a_queue_made_twice_is_the_same_queue(make):
    make().offer_or_update("a", 1, NOW)
    assert make().try_poll().payload == 1
