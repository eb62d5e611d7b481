"""What is scheduled, and what an assertion says that fails."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from delayedq import DelayedQueue
from delayedq.exceptions import InvalidTime
from delayedq.models import Message
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


NINE = "args [9], kwargs {}, key None, at 2026-03-08T06:55:00+00:00, queue 'slow'"
SEVEN = "args [7], kwargs {'gate': 'B7'}, key 'a', at 2026-03-08T07:55:00+00:00, queue 'default'"
EIGHT = "args [8], kwargs {}, key None, at 2026-03-08T08:55:00+00:00, queue 'default'"
AROUND = "2026-03-08T07:54:59+00:00 to 2026-03-08T07:55:01+00:00"


@pytest.mark.parametrize(
    ("wanted", "expected", "nearest", "differences"),
    [
        (
            {"args": [7], "key": "b", "kwargs": {"gate": "B7"}},
            "a message of tests.app.tasks.remind with {'flight_id': 7, 'gate': 'B7', 'key': 'b'}; 0 found",
            SEVEN,
            ["  key: expected 'b'", "       found    'a'"],
        ),
        (
            {"args": [9], "at": START + HOUR},
            f"a message of tests.app.tasks.remind with {{'flight_id': 9, 'at': '{AROUND}'}}; 0 found",
            NINE,
            [f"  at: expected {AROUND}", "      found    2026-03-08T06:55:00+00:00"],
        ),
        (
            {"within": HOUR / 2, "key": "a"},
            "a message of tests.app.tasks.remind with {'key': 'a', 'at': 'to 2026-03-08T07:25:00+00:00'}; 0 found",
            NINE,
            ["  key: expected 'a'", "       found    None"],
        ),
        (
            {"args": [8], "kwargs": {"gate": "C"}},
            "a message of tests.app.tasks.remind with {'flight_id': 8, 'gate': 'C'}; 0 found",
            EIGHT,
            ["  argument gate: expected 'C'", "                 found    (its default)"],
        ),
        ({"count": 2}, "2 messages of tests.app.tasks.remind; 3 found", None, []),
        ({"count": 0}, "no message of tests.app.tasks.remind; 3 found", None, []),
    ],
    ids=["key", "at", "within", "arguments", "count", "none"],
)
def test_a_failure_shows_the_nearest_miss_and_what_is_there(flights, wanted, expected, nearest, differences):
    with pytest.raises(AssertionError) as failure:
        assert_scheduled(tasks.remind, **wanted)
    assert str(failure.value).splitlines() == [
        f"Expected {expected}.",
        *([f"The nearest is {nearest}; it differs in:"] if nearest else []),
        *differences,
        "Scheduled are:",
        *(f"  {message}" for message in (NINE, SEVEN, EIGHT)),
    ]


@pytest.mark.parametrize(
    ("target", "wanted", "error", "text"),
    [
        (tasks.remind, {"args": [1, 2, 3]}, TypeError, "remind: too many positional arguments"),
        (tasks.remind, {"kwargs": {"gat": "B7"}}, TypeError, "remind: got an unexpected keyword argument 'gat'"),
        (tasks.remind, {"payload": 7}, TypeError, "A task has arguments: compare with args= and kwargs="),
        (tasks.remind, {"at": datetime(2026, 3, 8)}, InvalidTime, "must be aware"),  # noqa: DTZ001
        (tasks.remind, {"at": "2026-03-08"}, InvalidTime, "not '2026-03-08'"),
        (tasks.remind, {"within": 5}, TypeError, "within is a timedelta, not 5"),
        ("remind", {}, TypeError, "a task or a DelayedQueue, not to 'remind'"),
        (tasks.remind.func, {}, TypeError, "a task or a DelayedQueue, not to <function remind"),
    ],
    ids=["too many", "unknown", "payload", "naive", "text", "number", "no task", "function"],
)
def test_what_can_not_be_compared_is_refused(alias, target, wanted, error, text):
    with pytest.raises(error, match=re.escape(text)):
        assert_not_scheduled(target, **wanted)


def test_a_message_whose_arguments_no_longer_fit_is_compared_and_shown(alias):
    tasks.remind.enqueue(7, gate="B7")
    Message.objects.update(payload='{"args":[7],"kwargs":{"gate":"B7","seat":1}}')
    assert_scheduled(tasks.remind, kwargs={"gate": "B7"})
    with pytest.raises(AssertionError, match=r"args \[7\], kwargs {'gate': 'B7', 'seat': 1}"):
        assert_scheduled(tasks.remind, key="a")


def test_a_failure_lists_the_first_messages_of_many(alias):
    tasks.remind.enqueue_many(((number,), {}) for number in range(23))
    with pytest.raises(AssertionError) as failure:
        assert_scheduled(tasks.remind, args=[22], key="a")
    lines = str(failure.value).splitlines()
    assert lines[1].startswith("The nearest is args [22]")
    assert (len(lines), lines[-1]) == (2 + 2 + 1 + 20 + 1, "  and 3 more")


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
