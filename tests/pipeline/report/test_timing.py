"""Messages as the times they took."""

from __future__ import annotations

import json

import pytest

from delayedq.pipeline.report.facts import timed, within
from tests.pipeline.report.histories import NOON, after, ended, failure, frame

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def times(spark):
    """All cases in one go: Spark takes long to begin, and no longer for many rows."""
    rows = {name: {**row, "key": name} for name, row in CASES.items()}
    numbered = [{**row, "id": number} for number, row in enumerate(rows.values())]
    found = {row["id"]: row for row in timed(frame(spark, *numbered)).collect()}
    return {name: found[number] for number, name in enumerate(rows)}


RETRIED = ended(31, 33, due=30, due_first=0, attempts=3, failures=[(1, 5, 2.0), (2, 20, 3.0)])
CASES = {
    "plain": ended(),
    "created late": ended(created=0.5),
    "retried": RETRIED,
    "snoozed": ended(61, 63, due=60, due_first=0),
    "first record lost": ended(31, 33, due=30, due_first=0, attempts=2),
    "killed twice": ended(31, 33, due=0, attempts=3),
    "dead": ended(0.5, 2.5, state="failed", failures=[(1, 2.5, 2.0)]),
    "dead by vanishing": ended(None, 90, state="failed", attempts=3, failures=[(4, 90, None)]),
    "cancelled before": ended(None, 5, state="cancelled", attempts=0),
    "cancelled ahead": ended(None, 5, due=60, state="cancelled", attempts=0),
    "retry cancelled": ended(3, 40, due=900, due_first=0, attempts=1, failures=[(1, 5, 2.0)], state="cancelled"),
    "cancelled while running": ended(None, 5, state="cancelled", attempts=1),
    "moved after its start": ended(5, 7, due=3600, due_first=0),
    "clock went back": ended(-1, -2),
    "no json": ended(errors="{what"),
    "json of another kind": ended(errors='{"attempt": 1}'),
    "no times in it": ended(attempts=2, errors=json.dumps([failure(1, 1, 1) | {"failed_at": "soon", "seconds": None}])),
    "tick": ended(metadata=json.dumps({"cron": {"schedule": "report", "nominal_at": after(-5).isoformat()}})),
    "talks of cron": ended(metadata=json.dumps({"note": 'about "cron"'})),
    "as many failures as are kept": ended(attempts=30, failures=[(n, n, 1.0) for n in range(10, 30)]),
}


def test_a_wait_lasts_from_the_due_time_to_the_start(times):
    row = times["plain"]

    assert (row["wait"], row["run"], row["turnaround"]) == (1, 2, 3)
    assert row["arrived"] == NOON.timestamp()
    assert row["failures"] is None


def test_what_was_moved_to_a_later_time_after_its_start_arrived_at_its_first_time_and_has_no_wait(times):
    row = times["moved after its start"]

    assert (row["wait"], row["run"], row["turnaround"]) == (None, 2, 7)
    assert row["arrived"] == NOON.timestamp()


def test_a_message_arrives_when_it_is_created_if_it_is_due_before(times):
    assert times["created late"]["wait"] == 0.5


def test_a_retried_message_waited_for_its_first_attempt_and_turned_around_with_its_last(times):
    row = times["retried"]

    assert row["began"] - NOON.timestamp() == 3
    assert (row["wait"], row["run"], row["turnaround"]) == (3, 2, 33)
    assert [(f["attempt"], f["run"]) for f in row["failures"]] == [(1, 2), (2, 3)]
    assert row["silent"] == 0


def test_a_snoozed_message_arrives_when_it_asked_to(times):
    assert times["snoozed"]["wait"] == 1


def test_what_no_record_tells_is_unknown(times):
    row = times["first record lost"]

    assert (row["began"], row["wait"]) == (None, None)
    assert row["turnaround"] == 33


@pytest.mark.parametrize(
    ("case", "silent"),
    [
        ("plain", 0),
        ("first record lost", 1),
        ("killed twice", 2),
        ("dead", 0),
        ("dead by vanishing", 3),
        ("cancelled before", 0),
        ("cancelled while running", 0),
        ("as many failures as are kept", 0),
    ],
)
def test_attempts_without_a_word_are_counted(times, case, silent):
    assert times[case]["silent"] == silent


def test_a_message_cancelled_before_it_began_has_not_waited(times):
    row = times["cancelled before"]

    assert (row["wait"], row["run"]) == (None, None)


def test_a_message_cancelled_before_its_time_never_arrived(times):
    row = times["cancelled ahead"]

    assert (row["arrived"], row["wait"], row["turnaround"]) == (None, None, None)


def test_a_message_whose_retry_was_cancelled_arrived_at_its_first_time(times):
    row = times["retry cancelled"]

    assert (row["arrived"], row["wait"], row["turnaround"]) == (NOON.timestamp(), 3, 40)


def test_a_failed_message_is_known_by_its_record(times):
    assert times["dead"]["recorded"]
    assert times["dead"]["wait"] == 0.5


def test_no_time_is_negative(times):
    row = times["clock went back"]

    assert (row["wait"], row["run"], row["turnaround"]) == (0, 0, 0)


@pytest.mark.parametrize("case", ["no json", "json of another kind"])
def test_errors_that_are_none_are_passed_over(times, case):
    assert times[case]["wait"] == 1
    assert not times[case]["recorded"]


def test_a_record_without_times_gives_no_times(times):
    [record] = times["no times in it"]["failures"]

    assert (record["began"], record["run"]) == (None, None)
    assert times["no times in it"]["wait"] is None


def test_a_tick_knows_its_schedule_and_when_it_was_due(times):
    assert times["tick"]["schedule"] == "report"
    assert times["tick"]["nominal"] == after(-5).timestamp()
    assert times["talks of cron"]["schedule"] is None


def test_a_window_holds_what_was_in_the_queue_at_some_time_of_it(spark):
    rows = [
        ended(-20, -10, due=-30, id=1),  # over before it begins
        ended(-20, 5, due=-30, id=2),  # ends in it
        ended(10, 12, due=5, id=3),
        ended(10, 900, due=5, id=4),  # ends after it
        ended(300, 301, due=299, id=5),  # waits in it for a later time
        ended(None, None, due=-30, state="waiting", attempts=0, id=6),  # still there
        ended(None, None, due=1e6, state="waiting", attempts=0, id=7),  # of the future
        ended(300, 301, created=200, due=299, id=8),  # not there yet
    ]

    found = within(frame(spark, *rows), NOON, after(100)).select("id").collect()
    assert sorted(row["id"] for row in found) == [2, 3, 4, 5, 6, 7]
