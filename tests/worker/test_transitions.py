"""From an ended attempt to what the store is asked to do."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from delayedq import Cancel, Retry, Snooze
from delayedq.core.bounds import ERRORS_KEPT
from delayedq.core.lifecycle import Decision, FinalOutcome, Impossible, NotStarted, Raised
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Finish, GiveBack
from delayedq.worker.transitions import AttemptResult, decision, send_signals, transition, vanished
from tests.app import tasks
from tests.worker.attempts import attempt_of, claimed, playing, run, work

MINUTE = timedelta(minutes=1)
RECORD = {"attempt": 1, "worker": "host:1", "exception": "builtins.ValueError", "traceback": "Traceback"}
LATER = datetime(2026, 3, 8, 7, tzinfo=UTC)


def raising(error, **fields):
    def body():
        raise error

    return run(playing(body, **fields))


def after(ended, seconds=0.0):
    """The transition, `seconds` after the attempt."""
    return transition(ended, decision(ended), ended.finished + seconds)


def errors(ended):
    return json.loads(after(ended).errors)


# What the store is asked to do


def test_success_finishes_with_the_result_and_how_long_ago_it_was():
    ended = run(attempt_of(tasks.remind, 7))
    done = after(ended, 2.0)
    assert isinstance(done, Finish)
    assert (done.claimed, done.outcome, done.result, done.errors) == (
        ended.attempt.claimed, FinalOutcome.SUCCEEDED, '"7 at None"', None
    )  # fmt: skip
    assert done.finished == pytest.approx(2.0)
    assert done.started == pytest.approx(2.0 + ended.finished - ended.started)


def test_an_error_gives_back_with_the_backoff():
    ended = raising(ValueError(), task=replace(tasks.play, backoff=MINUTE))
    back = after(ended, 2.0)
    assert isinstance(back, GiveBack)
    assert (back.charged, back.delay, back.until) == (True, 60.0, None)
    assert back.finished == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("error", "charged", "delay", "until"),
    [
        (Retry(delay=MINUTE), True, 60.0, None),
        (Snooze(MINUTE), False, 60.0, None),
        (Snooze(timedelta()), False, 0.0, None),
        (Snooze(until=LATER), False, None, LATER),
    ],
    ids=repr,
)
def test_what_a_task_asked_for_is_given_back_so(error, charged, delay, until):
    back = after(raising(error))
    assert isinstance(back, GiveBack)
    assert (back.charged, back.delay, back.until) == (charged, delay, until)


def test_the_last_error_finishes_as_failed():
    done = after(raising(ValueError("no fuel"), attempt=8))
    assert (type(done), done.outcome, done.result) == (Finish, FinalOutcome.FAILED, None)


def test_a_cancellation_finishes_as_cancelled_with_its_reason():
    ended = raising(Cancel("the flight left"))
    assert after(ended).outcome == FinalOutcome.CANCELLED
    (error,) = errors(ended)
    assert error["message"] == "the flight left"


def test_what_never_started_is_given_back_without_a_trace():
    ended = AttemptResult(attempt_of(tasks.remind, 7), NotStarted(), None, time.monotonic())
    back = after(ended)
    assert isinstance(back, GiveBack)
    assert (back.charged, back.started, back.delay, back.until, back.errors) == (False, None, None, None, None)


def test_what_can_not_run_finishes_as_failed_without_a_start():
    ended = AttemptResult(attempt_of(tasks.remind), Impossible(), None, time.monotonic(), LookupError("gone"))
    done = after(ended)
    assert (type(done), done.outcome, done.started) == (Finish, FinalOutcome.FAILED, None)
    assert errors(ended)[0]["seconds"] is None


# The errors a message carries


def test_an_error_is_recorded_in_full():
    ended = raising(ValueError("no fuel"), attempt=2)
    (error,) = errors(ended)
    assert error.keys() == {"attempt", "failed_at", "seconds", "worker", "exception", "message", "traceback"}
    assert (error["attempt"], error["worker"]) == (2, "host:1")
    assert (error["exception"], error["message"]) == ("builtins.ValueError", "no fuel")
    assert error["traceback"].endswith("ValueError: no fuel\n")
    assert datetime.fromisoformat(error["failed_at"]).tzinfo is not None
    assert error["seconds"] >= 0


def test_errors_add_up_and_the_oldest_go():
    before = json.dumps([{**RECORD, "attempt": number} for number in range(1, ERRORS_KEPT + 1)])
    kept = errors(raising(ValueError(), attempt=ERRORS_KEPT + 1, max_attempts=99, errors=before))
    assert [error["attempt"] for error in kept] == list(range(2, ERRORS_KEPT + 2))


def test_a_snooze_adds_no_error():
    assert after(raising(Snooze(MINUTE), errors=json.dumps([RECORD]))).errors is None


def test_a_huge_error_is_cut():
    def recurse(text):
        recurse(text)

    (error,) = errors(raising(ValueError("x" * 10_000_000)))
    assert len(json.dumps(error)) < 100_000
    (error,) = errors(run(playing(lambda: recurse("y"))))
    assert error["exception"] == "builtins.RecursionError"


class Unprintable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("It can't be told.")


@pytest.mark.parametrize("attempt", [1, 8], ids=["retry", "failure"])
def test_an_error_that_can_not_be_printed_does_not_take_the_worker_along(attempt):
    ended = raising(Unprintable(), attempt=attempt)
    (error,) = errors(ended)
    assert error["exception"].endswith("Unprintable")
    send_signals(ended, decision(ended))


@pytest.mark.parametrize("text", ["\0", "\ud800", "\N{AIRPLANE}"], ids=ascii)
def test_any_text_of_an_error_can_be_stored(store, text):
    tasks.fail.using(max_attempts=1).enqueue("x")
    tasks.bodies["raising"] = lambda: tasks.fail.func(text)
    tasks.play.using(max_attempts=1).enqueue("raising")
    work(store)
    messages = [json.loads(row.errors)[0]["message"] for row in FinishedMessage.objects.failed()]
    assert sorted(messages) == sorted(["x", text])


# Backoffs that fail


@pytest.mark.parametrize(
    "backoff",
    [lambda _: 5, lambda _: None, lambda _: 1 / 0, lambda: MINUTE],
    ids=["int", "none", "raises", "no number"],
)
def test_a_backoff_that_fails_does_not_take_the_worker_along(backoff):
    ended = raising(ValueError("no fuel"), task=replace(tasks.play, backoff=backoff))
    assert decision(ended).outcome in {None, FinalOutcome.FAILED}


@pytest.mark.parametrize("delay", [timedelta.max, -MINUTE, timedelta.min], ids=str)
@pytest.mark.parametrize("steer", [lambda delay: Retry(delay=delay), Snooze], ids=["retry", "snooze"])
def test_a_delay_beyond_all_time_does_not_take_the_worker_along(store, delay, steer):
    def body():
        raise steer(delay)

    tasks.bodies["raising"] = body
    tasks.play.enqueue("raising")
    work(store)
    assert len(store.scan()) == Message.objects.count() <= 1


# Attempts that ended without a word


@pytest.mark.parametrize(
    ("attempt", "known", "times"),
    [(1, 0, 0), (2, 0, 1), (2, 1, 0), (5, 1, 3), (3, 2, 0), (ERRORS_KEPT + 5, ERRORS_KEPT, 0)],
)
def test_attempts_without_an_error_have_vanished(attempt, known, times):
    last = attempt - 1 - times
    errors = json.dumps([{"attempt": number} for number in range(last - known + 1, last + 1)]) if known else None
    assert vanished(claimed(tasks.remind, attempt=attempt, errors=errors)) == times


def test_decisions_are_those_of_the_message_not_of_the_task():
    ended = AttemptResult(attempt_of(tasks.remind, max_attempts=1), Raised(), 1.0, 2.0, ValueError())
    assert decision(ended) == Decision(FinalOutcome.FAILED)
