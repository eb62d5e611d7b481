"""What an envelope says after its end was rolled back, with a savepoint or with the whole transaction."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connections, transaction

from delayedq.models import Message
from tests.queue.given import Boom, boom
from tests.store.given import NOW, outcomes, undone

DONE = "acknowledged"


@pytest.fixture
def envelope(queue):
    queue.offer_or_update("a", 1, NOW)
    return queue.try_poll()


def test_an_end_that_is_rolled_back_to_a_savepoint_can_be_written_again(envelope, alias):
    with transaction.atomic(using=alias):
        with undone(alias):
            assert envelope.acknowledge() == DONE
        assert envelope.answer is None
        assert envelope.reject() == DONE
    assert (envelope.answer, envelope.acknowledge(), Message.objects.count()) == (DONE, DONE, 1)


def test_an_end_within_a_savepoint_that_is_released_stands(envelope, alias):
    with transaction.atomic(using=alias):
        with transaction.atomic(using=alias):
            envelope.acknowledge()
        assert (envelope.answer, envelope.reject()) == (DONE, DONE)
    assert (envelope.reject(), outcomes()) == (DONE, ["succeeded"])


def test_an_end_that_is_rolled_back_with_its_transaction_gives_the_message_back(queue, envelope, alias):
    with suppress(Boom), envelope, transaction.atomic(using=alias):
        envelope.acknowledge()
        boom()
    assert queue.try_poll().attempt == 2


def test_a_lease_can_be_extended_after_its_end_was_rolled_back(envelope, alias):
    with undone(alias):
        envelope.acknowledge()
        assert not envelope.extend(timedelta(seconds=90))
    assert envelope.extend(timedelta(seconds=90))


def test_an_extension_that_is_rolled_back_leaves_the_lease_as_it_was(envelope, alias):
    before = envelope.held_until()
    with transaction.atomic(using=alias):
        assert envelope.extend(timedelta(hours=1))
        extended = envelope.held_until()
        assert extended > before + 3_000
        with undone(alias):
            assert envelope.extend(timedelta(hours=9))
            assert envelope.held_until() > extended + 3_000
        assert envelope.held_until() == extended
    assert envelope.held_until() == extended
    with undone(alias):
        assert envelope.extend(timedelta(hours=9))
    assert envelope.held_until() == extended
    assert envelope.extend(timedelta(hours=9))
    assert envelope.held_until() > extended + 3_000


def test_a_batch_whose_end_was_rolled_back_is_settled_again(queue, alias):
    for key in "ab":
        queue.offer_or_update(key, 1, NOW)
    batch = queue.try_poll_many(2)
    with undone(alias):
        assert batch.acknowledge() == [DONE, DONE]
    batch.envelopes[0].release()

    assert batch.acknowledge() == [DONE, DONE]
    assert outcomes() == ["succeeded"]


def test_what_was_read_and_whose_end_was_rolled_back_is_acknowledged_again(queue, alias):
    queue.offer_or_update("a", 1, NOW)
    reading = queue.read("a")
    with undone(alias):
        assert reading.acknowledge() == DONE
    assert (reading.acknowledge(), outcomes()) == (DONE, ["succeeded"])


def test_outside_of_transactions_nothing_is_kept_for_it(envelope, alias, monkeypatch):
    def never(*args, **options):
        raise AssertionError("no transaction is open")

    monkeypatch.setattr("delayedq.queue.rolled_back.transaction.on_commit", never)
    assert envelope.acknowledge() == DONE
    assert not connections[alias].run_on_commit
