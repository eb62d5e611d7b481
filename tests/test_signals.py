"""Signals about messages, and the log, which is one of their receivers."""

from __future__ import annotations

import logging
import os
from datetime import timedelta

import pytest

from delayedq import Cancel, Retry, Snooze
from delayedq.compat import TASKS_LOGGER, task_enqueued, task_finished, task_started
from delayedq.signals import (
    lease_lost,
    message_failed,
    message_retrying,
    wanted,
    worker_started,
    worker_stopped,
)
from delayedq.worker.transitions import decision, send_signals
from tests.app import tasks
from tests.worker.attempts import claimed, playing, run


@pytest.fixture
def heard():
    """What was sent, as (signal, sender, arguments)."""
    events = []
    receivers = {}
    for name, signal in {"retrying": message_retrying, "failed": message_failed}.items():

        def receive(signal, sender, name=name, **arguments):
            events.append((name, sender, arguments))

        receivers[name] = signal, receive
        signal.connect(receive)
    yield events
    for signal, receive in receivers.values():
        signal.disconnect(receive)


def tell(body, **fields):
    ended = run(playing(body, **fields))
    send_signals(ended, decision(ended))
    return ended


def boom():
    raise ValueError("no fuel")


def later():
    raise Snooze(timedelta(seconds=5))


def off():
    raise Cancel("the flight left")


def again():
    raise Retry("busy")


@pytest.mark.parametrize(
    ("body", "error"), [(boom, "ValueError: no fuel"), (again, "Retry: busy")], ids=["raised", "asked"]
)
def test_a_retry_is_told_with_its_error_and_delay(heard, body, error):
    ended = tell(body, attempt=2)
    ((name, sender, arguments),) = heard
    assert (name, sender) == ("retrying", "tests.app.tasks.play")
    assert (arguments["claimed"], arguments["error"]) == (ended.attempt.claimed, error)
    assert 10 <= arguments["delay"] <= 20


def test_a_failure_is_told_with_its_error(heard):
    ended = tell(boom, attempt=8)
    told = {
        "claimed": ended.attempt.claimed,
        "error": "ValueError: no fuel",
        "exception": ended.error,
        "masked_trace": "",
    }
    assert heard == [("failed", "tests.app.tasks.play", told)]


@pytest.mark.parametrize("body", [later, off], ids=["snoozed", "cancelled"])
def test_what_a_task_asked_for_is_not_told_as_a_problem(heard, body):
    tell(body)
    assert heard == []


def test_a_receiver_that_raises_does_no_harm(heard, caplog):
    def receive(**_):
        raise RuntimeError("a bad receiver")

    message_failed.connect(receive)
    try:
        tell(boom, attempt=8)
    finally:
        message_failed.disconnect(receive)
    assert len(heard) == 1
    assert "a bad receiver" in caplog.text


# Logging


@pytest.mark.parametrize(
    ("attempt", "level", "text"),
    [
        (2, logging.WARNING, " s after attempt 2 of 8: ValueError: no fuel"),
        (8, logging.ERROR, "tests.app.tasks.play UA1545 failed for good after attempt 8 of 8: ValueError: no fuel"),
    ],
    ids=["retry", "failure"],
)
def test_retries_and_failures_are_logged_with_what_a_log_is_searched_by(caplog, attempt, level, text):
    ended = tell(boom, attempt=attempt, key="UA1545", queue="mail")
    (record,) = (record for record in caplog.records if record.name == "delayedq")
    assert record.levelno == level
    assert text in record.getMessage()
    assert (record.message_id, record.queue, record.attempt) == (ended.attempt.id, "mail", attempt)
    assert record.pid == os.getpid()
    assert record.exc_info[1] is ended.error


def test_a_flood_is_one_line_per_task_and_second_with_a_count(caplog, monkeypatch):
    moment = 100.0
    monkeypatch.setattr("delayedq.signals.time.monotonic", lambda: moment)
    for number in range(1_000):
        message_failed.send_robust("x", claimed=claimed(tasks.echo, key=str(number)), error="E")
    message_failed.send_robust("x", claimed=claimed(tasks.remind, key="other"), error="E")
    moment = 101.0
    message_failed.send_robust("x", claimed=claimed(tasks.echo, key="last"), error="E")
    assert [record.getMessage() for record in caplog.records] == [
        "tests.app.tasks.echo 0 failed for good after attempt 1 of 8: E",
        "tests.app.tasks.remind other failed for good after attempt 1 of 8: E",
        "tests.app.tasks.echo last failed for good after attempt 1 of 8: E (999 more like this were left out)",
    ]


def test_a_claim_after_the_last_attempt_is_not_counted_as_one(caplog):
    message_failed.send_robust("x", claimed=claimed(tasks.echo, attempt=4, max_attempts=3), error="E")
    assert "failed for good after attempt 3 of 3: E" in caplog.text


def test_an_unkeyed_message_is_logged_by_its_id(caplog):
    ended = tell(boom, attempt=8)
    assert f"tests.app.tasks.play {ended.attempt.id} failed" in caplog.text


def test_a_retry_without_a_known_delay_is_logged(caplog):
    message_retrying.send_robust("x", claimed=claimed(tasks.echo), error="E", delay=None)
    assert "will be tried again by its backoff after attempt 1 of 8: E" in caplog.text


def test_a_lost_lease_and_the_life_of_a_worker_are_logged(caplog):
    caplog.set_level(logging.INFO)
    lease_lost.send_robust("x", claimed=claimed(tasks.echo, key="a", attempt=2))
    worker_started.send_robust("w", worker="host:1")
    worker_stopped.send_robust("w", worker="host:1")
    assert [record.getMessage() for record in caplog.records] == [
        "tests.app.tasks.echo a: the lease of attempt 2 was lost, and its result refused",
        "Worker host:1 started",
        "Worker host:1 stopped",
    ]


# Is it worth building what a signal carries?


@pytest.fixture
def django_logs(request):
    logger = logging.getLogger(TASKS_LOGGER)
    before = logger.level
    logger.setLevel(request.param)
    yield
    logger.setLevel(before)


SIGNALS = [task_enqueued, task_started, task_finished]


@pytest.mark.parametrize(
    ("django_logs", "expected"),
    [
        (logging.DEBUG, [True, True, True]),
        (logging.INFO, [False, True, True]),
        (logging.ERROR, [False, False, True]),
        (logging.CRITICAL, [False, False, False]),
    ],
    indirect=["django_logs"],
)
def test_djangos_signals_are_wanted_while_django_logs_them(django_logs, expected):
    levels = [logging.DEBUG, logging.INFO, logging.ERROR]
    assert [wanted(signal, level) for signal, level in zip(SIGNALS, levels, strict=True)] == expected


@pytest.mark.parametrize("django_logs", [logging.CRITICAL], indirect=True)
@pytest.mark.parametrize("signal", SIGNALS, ids=["enqueued", "started", "finished"])
def test_djangos_signals_are_wanted_while_another_receiver_listens(django_logs, signal):
    def receive(**_):
        """Listens."""

    signal.connect(receive)
    assert wanted(signal, logging.ERROR)
    signal.disconnect(receive)
    assert not wanted(signal, logging.ERROR)
