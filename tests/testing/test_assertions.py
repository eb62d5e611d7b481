"""What is scheduled, and what an assertion says that fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import DelayedQueue
from delayedq.testing import assert_not_scheduled, assert_scheduled, clock, scheduled
from tests.app import tasks

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)

OURS = "delayedq.backend.DelayedQBackend"
DUMMY = "delayedq.testing.DummyBackend"


@pytest.fixture(params=[OURS, DUMMY])
def flights(request, alias, settings):
    """Three messages, at a moment that stands still."""
    settings.TASKS = {"default": {"BACKEND": request.param, "QUEUES": []}}
    with clock(START):
        tasks.remind.schedule_at(START + HOUR, 7, gate="B7", key="a")
        tasks.remind.schedule_at(START + 2 * HOUR, 8)
        tasks.remind.using(queue_name="slow").enqueue(9)
        yield


def test_what_is_scheduled_is_listed_in_its_order(flights):
    assert [(message.args, message.kwargs, message.key, message.queue) for message in scheduled(tasks.remind)] == [
        ([9], {}, None, "slow"),
        ([7], {"gate": "B7"}, "a", "default"),
        ([8], {}, None, "default"),
    ]
    assert scheduled(tasks.echo) == []


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 3),
        ({"args": [7]}, 1),
        ({"kwargs": {"flight_id": 7}}, 1),
        ({"args": [7, "B7"]}, 1),
        ({"args": [7], "kwargs": {"gate": "C"}}, 0),
        ({"kwargs": {"gate": "B7"}}, 1),
        ({"key": "a"}, 1),
        ({"key": "b"}, 0),
        ({"queue": "slow"}, 1),
        ({"at": START + HOUR}, 1),
        ({"at": START + HOUR + timedelta(minutes=5)}, 0),
        ({"at": START + HOUR + timedelta(minutes=5), "within": timedelta(minutes=5)}, 1),
        ({"within": HOUR}, 2),
        ({"within": timedelta(0)}, 1),
    ],
    ids=repr,
)
def test_messages_are_compared_by_what_is_given(flights, wanted, count):
    assert_scheduled(tasks.remind, **wanted, count=count)
    if count:
        assert len(assert_scheduled(tasks.remind, **wanted)) == count
        with pytest.raises(AssertionError):
            assert_not_scheduled(tasks.remind, **wanted)
    else:
        assert_not_scheduled(tasks.remind, **wanted)
        with pytest.raises(AssertionError):
            assert_scheduled(tasks.remind, **wanted)


def test_a_failure_shows_the_nearest_miss_and_what_is_there(flights):
    with pytest.raises(AssertionError) as failure:
        assert_scheduled(tasks.remind, args=[7], key="b", kwargs={"gate": "B7"})
    text = str(failure.value)
    assert text.startswith(
        "Expected a message of tests.app.tasks.remind with {'flight_id': 7, 'gate': 'B7', 'key': 'b'}; 0 found."
    )
    assert "differs in:\n  key: expected 'b'\n       found    'a'\nScheduled are:\n" in text
    assert text.count("args [") == 4


def test_a_failure_shows_that_nothing_is_there(flights):
    with pytest.raises(
        AssertionError, match=r"a message of tests\.app\.tasks\.echo; 0 found\.\nNothing is scheduled\."
    ):
        assert_scheduled(tasks.echo)


def test_a_bare_queue_is_compared_by_payload(alias):
    contacts = DelayedQueue("contacts")
    with clock(START):
        contacts.offer_or_update("ann", {"city": "Cluj"}, START + HOUR)
        assert_scheduled(contacts, payload={"city": "Cluj"}, key="ann", at=START + HOUR, queue="contacts", count=1)
        assert_not_scheduled(contacts, payload=None)
        with pytest.raises(AssertionError, match="payload: expected 7"):
            assert_scheduled(contacts, payload=7)
        with pytest.raises(TypeError, match="payload="):
            assert_scheduled(contacts, args=[7])
