"""The test backends: all options, keys and refusals of production, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import Call, Cancel, Retry, Snooze
from delayedq import task as our_task
from delayedq.compat import InvalidTask, TaskResultDoesNotExist, default_task_backend, task_enqueued, task_finished
from delayedq.exceptions import InvalidKey, InvalidTime, NotStorable, PayloadTooLarge
from delayedq.tasks import registered
from delayedq.testing import clock, scheduled
from tests.app import tasks

OURS = "delayedq.backend.DelayedQBackend"
DUMMY, IMMEDIATE = "delayedq.testing.DummyBackend", "delayedq.testing.ImmediateBackend"
START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATER = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[DUMMY, IMMEDIATE])
def backend(request, settings):
    settings.TASKS = {"default": {"BACKEND": request.param, "QUEUES": []}}
    return default_task_backend


@pytest.fixture
def dummy(settings):
    settings.TASKS = {"default": {"BACKEND": DUMMY, "QUEUES": []}}
    return default_task_backend


@pytest.fixture
def immediate(settings):
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE, "QUEUES": []}}
    return default_task_backend


def add(a, b):
    return a + b


def play(body, **options):
    tasks.bodies["backends"] = body
    return tasks.play.using(**options).enqueue("backends")


def raising(error):
    def body():
        raise error

    return body


def test_all_options_are_accepted(backend):
    try:
        made = our_task(max_attempts=3, backoff=HOUR, timeout=HOUR, metadata={"a": 1}, exactly_once=True, priority=7)(
            add
        )
        assert (made.max_attempts, made.backoff) == (3, HOUR)
    finally:
        registered.pop("tests.testing.test_backends.add", None)


@pytest.mark.parametrize(
    ("on_conflict", "outcome", "args", "at"),
    [
        ("replace", "updated", [2], LATER - HOUR),
        ("keep", "ignored", [1], LATER),
        ("preserve_time", "updated", [2], LATER),
        ("earliest", "updated", [2], LATER - HOUR),
        ("latest", "updated", [2], LATER),
    ],
)
def test_two_offers_of_a_key_are_one_message(backend, on_conflict, outcome, args, at):
    first = tasks.remind.schedule_at(LATER, 1, key="a")
    second = tasks.remind.schedule_at(LATER - HOUR, 2, key="a", on_conflict=on_conflict)
    assert (first.outcome, second.outcome, second.id) == ("created", outcome, first.id)
    (message,) = scheduled(tasks.remind)
    assert (message.args, message.at) == (args, at)
    assert len(backend.results) == 1


def test_the_same_offer_again_is_ignored(backend):
    assert tasks.remind.schedule_at(LATER, 1, key="a").outcome == "created"
    assert tasks.remind.schedule_at(LATER, 1, key="a").outcome == "ignored"
    assert tasks.echo.schedule_at(LATER, 1, key="a").outcome == "created"
    assert tasks.remind.unschedule(key="a")
    assert not tasks.remind.unschedule(key="a")
    assert tasks.remind.schedule_at(LATER, 1, key="a").outcome == "created"


def test_many_are_enqueued(dummy):
    assert [one.outcome for one in tasks.remind.enqueue_many([((1,), {}), ((2,), {})])] == ["created", "created"]
    assert tasks.remind.enqueue_bulk(((number,), {}) for number in range(3)) == 3
    assert len(scheduled(tasks.remind)) == 5


def test_what_is_wrong_is_refused_as_in_production(backend, settings):
    for error, wrong in (
        (NotStorable, lambda: tasks.echo.enqueue(object())),
        (TypeError, lambda: tasks.depart.enqueue(1, 2, 3)),
        (InvalidTime, lambda: tasks.echo.schedule_at(datetime(2040, 1, 1))),  # noqa: DTZ001
        (InvalidKey, lambda: tasks.echo.schedule_at(LATER, key="")),
        (InvalidKey, lambda: tasks.echo.unschedule(key="")),
    ):
        with pytest.raises(error):
            wrong()
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 10}
    with pytest.raises(PayloadTooLarge):
        tasks.echo.enqueue("x" * 20)
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["other"]}}
    with pytest.raises(InvalidTask):
        tasks.echo.schedule_at(LATER)


def test_dummy_runs_nothing(dummy):
    ran = []
    result = play(lambda: ran.append(1))
    assert (result.status, ran, dummy.results) == ("READY", [], [result])
    assert dummy.get_result(result.id) is result
    dummy.clear()
    with pytest.raises(TaskResultDoesNotExist):
        dummy.get_result(result.id)


def test_immediate_runs_what_is_due(immediate):
    result = tasks.remind.enqueue(7, gate="B7")
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "7 at B7", 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.aecho.enqueue(START).return_value == {"args": [START], "kwargs": {}}
    assert tasks.count_attempts.enqueue().return_value == 1
    assert scheduled(tasks.remind) == []


def test_a_result_says_how_its_message_ended(immediate):
    assert tasks.remind.enqueue(7).outcome == "succeeded"
    assert play(raising(ValueError("no fuel")), max_attempts=1).outcome == "failed"
    assert play(raising(Cancel("enough"))).outcome == "cancelled"
    waits = play(raising(Snooze(HOUR)))
    assert waits.outcome is None
    waits = immediate.get_result(tasks.remind.schedule_at(LATER, 7, key="a").id)
    tasks.remind.unschedule(key="a")
    assert waits.outcome == "cancelled"


def test_what_a_batch_has_replaced_or_unscheduled_itself_does_not_run(immediate):
    ran = []
    tasks.bodies["a"], tasks.bodies["b"] = lambda: ran.append("a"), lambda: ran.append("b")
    tasks.bodies["c"] = lambda: tasks.play.unschedule(key="2")
    tasks.play.enqueue_many([Call(("a",), key="1"), Call(("b",), key="1")])
    tasks.play.enqueue_many([Call(("c",), key="1"), Call(("b",), key="2")])
    assert ran == ["b"]


def test_ctrl_c_stops_the_test(immediate):
    with pytest.raises(KeyboardInterrupt):
        play(raising(KeyboardInterrupt()))


def test_only_enqueue_sends_the_signal_as_in_production(immediate):
    sent = []
    task_enqueued.connect(receiver := lambda task_result, **_: sent.append((task_result.id, task_result.status)))
    try:
        result = tasks.remind.enqueue(7)
        tasks.remind.enqueue_many([((7,), {})])
        tasks.remind.schedule_at(START, 7)
    finally:
        task_enqueued.disconnect(receiver)
    assert sent == [(result.id, "READY")]


@pytest.mark.parametrize("backend", [OURS, DUMMY])
def test_chunks_have_a_size(settings, backend):
    settings.TASKS = {"default": {"BACKEND": backend, "QUEUES": []}}
    with pytest.raises(ValueError, match="chunk_size of at least 1, not 0"):
        tasks.remind.enqueue_bulk([((7,), {})], chunk_size=0)


def test_immediate_keeps_what_is_due_later(immediate):
    ran = []
    tasks.bodies["later"] = lambda: ran.append(1)
    with clock(START) as now:
        tasks.play.schedule_at(START + HOUR, "later", key="a")
        assert (len(scheduled(tasks.play)), ran) == (1, [])
        now.advance(HOUR)
        tasks.play.schedule_at(START, "later", key="a")
    assert (scheduled(tasks.play), ran) == ([], [1])


def test_immediate_repeats_what_fails(immediate):
    finished = []
    task_finished.connect(receiver := lambda task_result, **_: finished.append(task_result.status))
    try:
        result = play(raising(ValueError("no fuel")), max_attempts=3)
        assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)
        assert play(raising(Retry("busy", delay=HOUR)), max_attempts=2).attempts == 2
        assert finished == ["FAILED", "FAILED"]
        snoozed = play(raising(Snooze(HOUR)))
    finally:
        task_finished.disconnect(receiver)
    assert snoozed.status == "READY"
    assert len(scheduled(tasks.play)) == 1
