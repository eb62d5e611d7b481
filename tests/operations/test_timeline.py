"""The timeline of a message says how late its attempts started, how long they ran, and where it came from."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.operations.timeline import Attempt, attempts_in, timeline
from delayedq.store.protocol import Finish
from tests.store.given import NOW, at, claim_one, message, settle, succeed


@pytest.fixture
def told(store):
    def told(row, seconds=0):
        return [(event.at, event.what, event.detail) for event in timeline(store, row, at(seconds))]

    return told


def test_a_message_that_runs_says_since_when_and_how_late_it_started(store, told):
    store.at(NOW).offer(message("a"))
    claim_one(store, now=at(90))
    events = told(Message.objects.get(), 95)
    assert (at(90), "attempt 1 started", "on first, 1.5 min after it was due") in events
    assert [what for _, what, _ in events][-1] == "attempt 1 runs"


def test_an_ended_message_says_how_long_it_waited_and_ran(store, told):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store, now=at(0))
    settle(store, succeed(claimed, started=60.0, finished=0.0), now=at(62.5))
    events = told(FinishedMessage.objects.get(), 70)
    assert (at(2.5), "attempt 1 started", "on first, 2.5 s after it was due") in events
    assert events[-1] == (at(62.5), "succeeded", "its last attempt ran 1 min")


def test_what_never_started_ran_for_no_time(store, told):
    store.at(NOW).offer(message("a"))
    store.at(at(1)).unschedule("tests.remind", "a")
    assert told(FinishedMessage.objects.get(), 5)[-1] == (at(1), "cancelled", "")


@pytest.mark.parametrize(
    ("metadata", "origin"),
    [
        ('{"cron": {"schedule": "report"}}', "by the schedule report"),
        ('{"cron": {"schedule": 7}}', ""),
        ('{"cron": [1]}', ""),
        ("[", ""),
        (None, ""),
    ],
)
def test_a_tick_says_which_schedule_has_created_it(store, told, metadata, origin):
    store.at(NOW).offer(message("a", metadata=metadata, scheduled_at=NOW + timedelta(hours=1)))
    assert told(Message.objects.get())[0][1:] == ("created", origin)


RECORDS = [
    {"attempt": 1, "failed_at": (NOW + timedelta(seconds=30)).isoformat(), "seconds": 10.0},
    {"attempt": 2, "failed_at": (NOW + timedelta(seconds=60)).isoformat(), "seconds": 1.5},
]


def attempts(store, row, seconds):
    return attempts_in(timeline(store, row, at(seconds)))


def test_attempts_are_told_with_their_spans_each_once(store):
    """Of the last attempt of a dead letter, the record and the end of the message say when it ended."""
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store, now=at(58))
    settle(store, Finish(claimed, FinalOutcome.FAILED, 2.0, 0.0, None, json.dumps(RECORDS)), now=at(60))
    FinishedMessage.objects.update(attempts=2)
    assert attempts(store, FinishedMessage.objects.get(), 70) == [
        Attempt(1, at(20), at(30), "failed"),
        Attempt(2, at(58), at(60), "failed"),
    ]


def test_an_attempt_that_runs_lasts_until_now_and_a_lost_one_until_its_lease_ended(store):
    store.at(NOW).offer(message("a"))
    claim_one(store, now=at(5))
    row = Message.objects.get()
    assert attempts(store, row, 7) == [Attempt(1, at(5), at(7), "running")]
    assert attempts(store, row, 500) == [Attempt(1, at(5), row.leased_until, "lost")]


@pytest.mark.parametrize("record", [{"seconds": "x"}, {"seconds": -1}, {"seconds": 1e300}, {"attempt": None}, {}])
def test_a_record_that_does_not_say_how_long_it_ran_makes_no_span(store, record):
    store.at(NOW).offer(message("a"))
    told = {"failed_at": NOW.isoformat(), "attempt": 1, **record}
    Message.objects.update(errors=json.dumps([told if record else {"failed_at": NOW.isoformat()}]))
    assert attempts(store, Message.objects.get(), 5) == []
