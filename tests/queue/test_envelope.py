"""Letting go of a message: reject, defer, fail, release, extend, and what the others are told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from threading import Event

import pytest
from django.db import OperationalError, transaction

from delayedq.exceptions import InvalidQueue, InvalidTime, NotStorable, PayloadTooLarge
from delayedq.models import FinishedMessage, Message
from delayedq.queue import UNCHANGED, Batch, DeliveryType
from tests.queue.given import Boom, boom
from tests.store.given import NOW, at, history, outcomes, together

DONE, SUPERSEDED, LOST, BUSY = "acknowledged", "superseded", "lease_lost", "busy"
MINUTE = timedelta(seconds=60)


@pytest.fixture
def envelope(queue):
    queue.offer_or_update("a", 1, NOW)
    return queue.try_poll()


# Reject


def test_a_rejected_message_is_there_for_others_at_once(queue, envelope):
    assert envelope.reject() == DONE

    again = queue.try_poll()
    assert (again.message_id, again.attempt) == (envelope.message_id, 2)
    assert again.delivery_type == DeliveryType.REDELIVERY


def test_a_message_can_be_rejected_for_a_while(queue, envelope, clock):
    envelope.reject(timedelta(seconds=5))
    clock.move(4.999)
    assert queue.try_poll() is None
    clock.move(0.001)
    assert queue.try_poll().attempt == 2


@pytest.mark.parametrize(("delay", "error"), [(timedelta(seconds=-1), ValueError), (5, TypeError)])
def test_what_is_no_delay_is_refused_and_the_message_still_held(queue, envelope, delay, error):
    with pytest.raises(error, match="delay"):
        envelope.reject(delay)
    assert envelope.acknowledge() == DONE


def test_a_message_can_be_rejected_for_a_century_and_no_longer(queue, envelope):
    assert envelope.reject(timedelta.max) == DONE
    assert queue.try_poll() is None
    assert 2120 < queue.read("a").scheduled_at.year < 2130


def test_the_first_verb_decides_and_the_others_tell_what_it_told(queue, envelope):
    envelope.reject()

    assert envelope.acknowledge() == DONE
    assert queue.contains_message("a")


@pytest.mark.parametrize("verb", ["acknowledge", "reject", "release"])
def test_who_lost_the_message_changes_nothing(queue, envelope, clock, verb):
    clock.move(61)
    holder = queue.try_poll()

    assert getattr(envelope, verb)() == LOST
    assert holder.acknowledge() == DONE


def test_a_replaced_message_is_given_back_with_the_replacement_whatever_its_consumer_says(queue, envelope):
    queue.offer_or_update("a", 2, at(0))
    assert envelope.reject(MINUTE) == SUPERSEDED
    assert queue.try_poll().payload == 2


# Attempts


def test_after_its_last_attempt_a_rejected_message_is_a_dead_letter_and_that_is_told(make, caplog):
    queue = make(max_attempts=2)
    queue.offer_or_update("a", 1, NOW)
    queue.offer_or_update("b", 2, NOW)
    for _ in range(2):
        assert not caplog.records
        with pytest.raises(Boom), queue.try_poll():
            boom()

    assert "a failed for good after attempt 2 of 2: Boom: boom" in caplog.text
    assert queue.try_poll().key == "b"
    dead = history(key="a")
    assert (dead.outcome, dead.attempts) == ("failed", 2)
    assert [(e["attempt"], e["exception"]) for e in json.loads(dead.errors)] == [
        (1, "tests.queue.given.Boom"),
        (2, "tests.queue.given.Boom"),
    ]


def test_a_message_whose_consumers_vanish_is_set_aside_and_the_next_one_delivered(make, clock):
    queue = make(max_attempts=2)
    queue.offer_or_update("poison", 1, NOW)
    for _ in range(2):
        assert queue.try_poll().key == "poison"
        clock.move(61)
    queue.offer_or_update("b", 2, NOW)

    assert queue.try_poll().key == "b"
    dead = history(key="poison")
    assert (dead.outcome, dead.attempts) == ("failed", 2)
    assert "which is its max_attempts" in dead.errors


def test_a_poison_message_with_a_delay_blocks_no_other(queue, clock):
    queue.offer_or_update("poison", 1, NOW)
    queue.offer_or_update("b", 2, NOW)
    queue.try_poll().reject(timedelta(seconds=30))

    assert queue.try_poll().key == "b"
    assert queue.try_poll() is None


# Defer


def test_a_deferred_message_keeps_its_attempts_and_its_state(queue, envelope, clock):
    assert envelope.defer(at(10), state={"page": 7, "since": NOW}) == DONE
    assert queue.try_poll() is None
    clock.move(10)

    again = queue.try_poll()
    assert (again.attempt, again.state, again.scheduled_at) == (2, {"page": 7, "since": NOW}, at(10))
    again.defer(at(20))
    clock.move(10)
    third = queue.try_poll()
    assert (third.attempt, third.state) == (3, {"page": 7, "since": NOW})
    third.defer(at(20), state=None)
    assert queue.try_poll().state is None


def test_unchanged_is_the_same_as_no_state(queue, envelope, clock):
    envelope.defer(at(0), state=1)
    queue.try_poll().defer(at(0), state=UNCHANGED)
    assert queue.try_poll().state == 1


@pytest.mark.parametrize(
    ("until", "state", "error"),
    [
        (NOW.replace(tzinfo=None), 1, InvalidTime),
        (NOW.replace(tzinfo=timezone(timedelta(microseconds=1))), 1, InvalidTime),
        (NOW, object(), NotStorable),
        (NOW, "x" * 1_000_000, PayloadTooLarge),
    ],
)
def test_what_can_not_be_deferred_is_still_held(queue, envelope, until, state, error):
    with pytest.raises(error):
        envelope.defer(until, state)
    assert envelope.acknowledge() == DONE


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_a_message_can_not_be_deferred_to_before_all_time(queue, envelope):
    with pytest.raises(InvalidTime):
        envelope.defer(datetime(1, 1, 1, tzinfo=UTC))
    assert envelope.acknowledge() == DONE


# Fail, release


def test_a_failed_message_is_a_dead_letter_with_its_reason(queue, envelope, caplog):
    assert envelope.fail("no such address") == DONE

    assert queue.count() == 0
    dead = history(key="a")
    assert (dead.outcome, dead.attempts) == ("failed", 1)
    assert json.loads(dead.errors)[0]["message"] == "no such address"
    assert "no such address" in caplog.text


class Unprintable(Exception):  # noqa: N818
    def __str__(self):
        raise Boom


@pytest.mark.parametrize("errors", [None, "{", "5", '[{"no": "record"}]'])
def test_any_error_can_be_told_whatever_the_message_carries(queue, envelope, errors):
    Message.objects.update(errors=errors)
    envelope.release()
    with pytest.raises(Unprintable), queue.try_poll():
        raise Unprintable
    (record,) = json.loads(Message.objects.get().errors)
    assert (record["attempt"], record["message"]) == (1, "<it can't be printed>")
    assert "Unprintable" in record["traceback"]


def test_a_released_message_was_never_polled(queue, envelope):
    assert envelope.release() == DONE
    assert queue.try_poll().attempt == 1


# Extend


def test_an_extended_lease_holds_longer(queue, envelope, clock):
    assert envelope.extend(timedelta(seconds=90))
    clock.move(89)
    assert queue.try_poll() is None
    assert envelope.extend(MINUTE)
    clock.move(59)
    assert queue.try_poll() is None
    clock.move(1)
    assert queue.try_poll().attempt == 2


def test_a_lease_is_never_shortened(queue, envelope, clock):
    assert envelope.extend(timedelta(seconds=1))
    clock.move(59)
    assert queue.try_poll() is None


def test_a_lost_lease_can_not_be_extended(queue, envelope, clock):
    clock.move(61)
    holder = queue.try_poll()
    assert not envelope.extend(MINUTE)
    assert holder.extend(MINUTE)
    holder.acknowledge()
    assert not holder.extend(MINUTE)


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1), timedelta.max, 60])
def test_what_is_no_lease_is_refused(envelope, lease):
    with pytest.raises(InvalidQueue, match="timedelta over zero"):
        envelope.extend(lease)


# As a context manager


def test_an_envelope_acknowledges_at_the_end_of_its_block(queue, envelope):
    with envelope as same:
        assert same is envelope
    assert not queue.contains_message("a")


def test_an_envelope_rejects_on_an_error_and_lets_it_through(queue, envelope):
    with pytest.raises(LookupError, match="boom"), envelope:
        raise LookupError("boom")

    again = queue.try_poll()
    assert again.attempt == 2
    again.acknowledge()
    assert "boom" in history(key="a").errors


def test_the_error_passes_through_though_the_database_is_gone_too(queue, envelope, store, monkeypatch, clock):
    def fail(*args):
        raise OperationalError("the server went away")

    with monkeypatch.context() as outage:
        outage.setattr(store, "settle", fail)
        with pytest.raises(Boom), envelope:
            boom()
    clock.move(61)
    assert queue.try_poll().attempt == 2


def test_what_only_stops_the_program_is_no_attempt(queue, envelope):
    with pytest.raises(KeyboardInterrupt), envelope:
        raise KeyboardInterrupt
    assert queue.try_poll().attempt == 1


def test_what_was_settled_within_the_block_stays_so(queue, envelope, clock):
    with envelope:
        envelope.defer(at(5), state="half")
    clock.move(5)
    assert queue.try_poll().state == "half"


# While another transaction has locked the message


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_an_acknowledgement_waits_for_the_transaction_that_has_locked_the_message(queue, envelope, alias):
    locked, waited = Event(), Event()

    def lock():
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 2, NOW)
            locked.set()
            assert not waited.wait(0.2)

    def acknowledge():
        assert locked.wait(10)
        answer = envelope.acknowledge()
        waited.set()
        return answer

    assert together(lock, acknowledge)[1] == SUPERSEDED
    assert queue.try_poll().payload == 2


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_an_acknowledgement_waits_no_longer_than_its_lease(make, alias):
    queue = make(lease=timedelta(seconds=0.2))
    queue.offer_or_update("a", 1, NOW)
    envelope, locked, answered = queue.try_poll(), Event(), Event()

    def lock():
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 2, NOW)
            locked.set()
            assert answered.wait(10)

    def acknowledge():
        assert locked.wait(10)
        answers = [envelope.acknowledge(), *Batch(queue.leases, [envelope]).acknowledge(), envelope.answer]
        answered.set()
        return answers

    assert together(lock, acknowledge)[1] == [BUSY, BUSY, None]
    assert envelope.acknowledge() == SUPERSEDED, "nobody else has it, so it can still be settled"
    assert queue.try_poll().payload == 2


def test_what_ended_is_in_the_history_in_its_order(queue, clock):
    for key in "abc":
        queue.offer_or_update(key, 1, NOW)
    queue.try_poll().acknowledge()
    clock.move(1)
    queue.try_poll().fail("no")
    clock.move(1)
    queue.drop_message("c")

    assert outcomes() == ["succeeded", "failed", "cancelled"]
    assert FinishedMessage.objects.filter(queue="contacts|json").count() == 3
