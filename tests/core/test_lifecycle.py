from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.core.lifecycle import (
    AskedCancel,
    AskedRetry,
    AskedSnooze,
    Decision,
    FinalOutcome,
    Impossible,
    NotStarted,
    Raised,
    Returned,
    TooLate,
    decide,
)

LATER = datetime(2026, 3, 8, 7, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FAILED = Decision(FinalOutcome.FAILED)


def backoff(attempt):
    return timedelta(seconds=10 * attempt)


def never(attempt):
    raise AssertionError("The backoff is not needed.")


@pytest.mark.parametrize(
    ("outcome", "attempts_left", "none_left"),
    [
        (Returned(), Decision(FinalOutcome.SUCCEEDED), Decision(FinalOutcome.SUCCEEDED)),
        (Returned("7"), Decision(FinalOutcome.SUCCEEDED), Decision(FinalOutcome.SUCCEEDED)),
        (Raised(), Decision(None, delay=20.0), FAILED),
        (Raised(delay=MINUTE), Decision(None, delay=60.0), FAILED),
        (Raised(permanent=True), FAILED, FAILED),
        (TooLate(), Decision(FinalOutcome.EXPIRED), Decision(FinalOutcome.EXPIRED)),
        (AskedRetry(), Decision(None, delay=20.0), FAILED),
        (AskedRetry(MINUTE), Decision(None, delay=60.0), FAILED),
        (AskedRetry(timedelta()), Decision(None, delay=0.0), FAILED),
        (AskedCancel(), Decision(FinalOutcome.CANCELLED), Decision(FinalOutcome.CANCELLED)),
        (Impossible(), FAILED, FAILED),
    ],
    ids=repr,
)
def test_what_an_outcome_makes_of_its_message(outcome, attempts_left, none_left):
    assert decide(outcome, 2, 3, backoff) == attempts_left
    assert decide(outcome, 3, 3, backoff) == none_left
    assert decide(outcome, 4, 3, backoff) == none_left
    assert decide(outcome, 1, 1, backoff) == none_left


@pytest.mark.parametrize("attempt", [1, 3, 9])
@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (AskedSnooze(MINUTE), Decision(None, charged=False, delay=60.0)),
        (AskedSnooze(timedelta()), Decision(None, charged=False, delay=0.0)),
        (AskedSnooze(until=LATER), Decision(None, charged=False, until=LATER)),
        (NotStarted(), Decision(None, charged=False)),
    ],
    ids=repr,
)
def test_what_is_not_charged_waits_however_often_it_was_tried(outcome, decision, attempt):
    assert decide(outcome, attempt, 3, never) == decision


@pytest.mark.parametrize("outcome", [AskedSnooze(timedelta()), AskedRetry(timedelta()), Raised()], ids=repr)
def test_a_delay_is_a_number_of_seconds_also_if_it_is_none_at_all(outcome):
    assert type(decide(outcome, 1, 3, lambda _attempt: timedelta()).delay) is float


def test_the_backoff_is_asked_for_the_attempt_that_failed():
    assert [decide(Raised(), attempt, 9, backoff).delay for attempt in (1, 2, 8)] == [10.0, 20.0, 80.0]


@pytest.mark.parametrize(
    "outcome", [Returned(), AskedRetry(MINUTE), AskedCancel(), Impossible(), AskedSnooze(MINUTE)], ids=repr
)
def test_the_backoff_is_not_asked_where_it_does_not_matter(outcome):
    decide(outcome, 1, 3, never)


def test_the_backoff_is_not_asked_after_the_last_attempt():
    assert decide(Raised(), 3, 3, never) == FAILED
