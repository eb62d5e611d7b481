"""What a queue is made of: names, durations, history, and the settings where it has none of its own (C5, C7)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext

import delayedq
from delayedq import DelayedQueue, History
from delayedq.exceptions import InvalidQueue
from delayedq.models import FinishedMessage, Message
from delayedq.queue import CONFIRMATION
from tests.store.given import NOW, outcomes

KEEP, FAILURES, NONE = History


@pytest.mark.parametrize(
    "name", ["", "  ", "a|b", "a\0b", "\ud800", None, 7, "x" * 196, "reply~000000000000~0000000000000000"]
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidQueue):
        DelayedQueue(name)


@pytest.mark.parametrize("what", ["lease", "poll_interval"])
@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1), timedelta.max, 60, "a minute"])
def test_what_is_no_duration_is_refused(what, duration):
    with pytest.raises(InvalidQueue, match=what):
        DelayedQueue("contacts", **{what: duration})


@pytest.mark.parametrize("attempts", [0, -1, 32_001, 1.5, True])
def test_what_is_no_number_of_attempts_is_refused(attempts):
    with pytest.raises(InvalidQueue, match="max_attempts"):
        DelayedQueue("contacts", max_attempts=attempts)


def test_what_is_no_history_is_refused():
    with pytest.raises(ValueError, match="some"):
        DelayedQueue("contacts", history="some")


def test_a_longest_name_fits(make):
    queue = make("x" * 195)
    queue.offer_or_update("a", 1, NOW)
    assert queue.try_poll().payload == 1


def test_making_a_queue_asks_the_database_nothing(connection):
    with CaptureQueriesContext(connection) as captured:
        queue = DelayedQueue("contacts")
        queue.filter(payload__region="eu")
        queue.close()
    assert len(captured) == 0


def test_the_lease_is_that_of_the_settings_unless_the_queue_has_one(make, clock, settings):
    settings.DELAYEDQ = {"LEASE": timedelta(seconds=7)}
    for queue, seconds in ((make(lease=None), 7), (make("other", lease=timedelta(seconds=9)), 9)):
        queue.offer_or_update("a", 1, clock())
        queue.try_poll()
        clock.move(seconds - 0.001)
        assert queue.try_poll() is None
        clock.move(0.001)
        assert queue.try_poll().attempt == 2


@pytest.mark.parametrize(("own", "seconds"), [(None, 4), (1, 1), (9, 4)])
def test_a_consumer_sleeps_no_longer_than_the_settings_say(own, seconds, settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(seconds=4)}
    interval = None if own is None else timedelta(seconds=own)
    assert DelayedQueue("contacts", poll_interval=interval).patience() == seconds


def test_a_queue_may_name_its_database(make, alias):
    make(using=alias).offer_or_update("a", 1, NOW)
    assert make().count() == 1


# History


def end_in_every_way(queue):
    for key in ("done", "failed", "dropped", "replaced", "rejected", "read"):
        queue.offer_or_update(key, 1, NOW)
    queue.try_poll().acknowledge()
    queue.try_poll().fail("no")
    queue.drop_message("dropped")
    envelope = queue.try_poll()
    queue.offer_or_update("replaced", 2, NOW)
    envelope.acknowledge()
    queue.drop_message("replaced")
    envelope = queue.try_poll()
    queue.offer_or_update("rejected", 2, NOW)
    envelope.reject()
    queue.read("read").acknowledge()
    queue.drop_all_messages(CONFIRMATION)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (KEEP, ["succeeded", "failed", "cancelled", "superseded", "cancelled", "superseded", "succeeded", "cancelled"]),
        (FAILURES, ["failed"]),
        (NONE, []),
    ],
)
def test_a_queue_keeps_the_history_it_wants(make, kept, expected):
    queue = make(history=kept)
    end_in_every_way(queue)

    assert sorted(outcomes()) == sorted(expected)
    assert queue.history().count() == len(expected)
    assert Message.objects.count() == 0


@pytest.mark.parametrize("kept", [FAILURES, NONE])
def test_a_last_attempt_that_is_rejected_is_kept_unless_nothing_is(make, kept):
    queue = make(history=kept, max_attempts=1)
    queue.offer_or_update("a", 1, NOW)
    queue.try_poll().reject()
    assert outcomes() == ["failed"]


def test_the_history_of_a_queue_is_its_own_and_can_be_asked_like_any_queryset(make):
    for name in ("first", "second"):
        queue = make(name)
        for number in range(3):
            queue.offer_or_update(f"{number}", number, NOW)
        queue.try_poll_many(2).acknowledge()
    found = queue.history().filter(outcome="succeeded").order_by("id").values_list("key", flat=True)

    assert list(found) == ["0", "1"]
    assert FinishedMessage.objects.count() == 4


def test_the_package_gives_its_queues_on_demand():
    assert delayedq.DelayedQueue is DelayedQueue
    with pytest.raises(AttributeError, match="Queue"):
        delayedq.Queue  # noqa: B018


def test_an_error_within_a_property_of_a_queue_is_raised_as_it_is():
    class Contacts(DelayedQueue):
        @property
        def region(self):
            return [].nothing

    with pytest.raises(AttributeError, match="'list' object has no attribute 'nothing'"):
        Contacts("contacts").region  # noqa: B018
