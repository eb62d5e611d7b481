"""The contract of a `django.tasks` backend, in the life of a message: its times, signals, errors and return value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from delayedq import Cancel, Retry, Snooze
from delayedq.compat import TASKS_LOGGER, TaskContext, default_task_backend, task_enqueued, task_finished, task_started
from delayedq.core.lifecycle import Returned
from delayedq.models import Message
from delayedq.store.protocol import ClaimRequest, GiveBack, Lane
from delayedq.testing import clock, run_due
from delayedq.worker.shared_leases import SharedLeases
from tests.app import tasks
from tests.worker.attempts import LEASE, WORKER, drained, playing, run, work

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
BOTH = pytest.mark.parametrize("task", [tasks.echo, tasks.aecho], ids=["sync", "async"])


def play(body, *, task=tasks.play):
    """Enqueue a task that calls `body`."""
    tasks.bodies["contract"] = body
    return task.enqueue("contract")


def raising(error):
    def body(*_):
        raise error

    return body


def again():
    """Whatever waits is due."""
    Message.objects.update(scheduled_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def sent():
    """What the signals carried: (name, status) each."""
    events, receivers = [], []
    for signal in (task_enqueued, task_started, task_finished):

        def receive(signal, task_result, **_):
            events.append((signal, task_result.status.value, task_result))

        receivers.append((signal, receive))
        signal.connect(receive)
    yield events
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_signals_and_contexts_show_the_task_as_it_was_enqueued(store, sent):
    changed = tasks.count_attempts.using(priority=5, queue_name="mail", metadata={"a": 1})
    changed.enqueue()
    work(store)
    assert [result.task for _, _, result in sent] == [changed] * 3


# The times of attempts


def test_while_an_attempt_runs_its_result_tells_when_it_started(store):
    seen = []

    def body():
        seen.append(tasks.play.get_result(result.id))
        raise ValueError

    result = play(body)
    for _ in range(2):
        again()
        work(store)
    first, second = seen
    assert (first.status, second.status) == ("RUNNING", "RUNNING")
    assert result.enqueued_at <= first.started_at == first.last_attempted_at < second.last_attempted_at
    assert second.last_attempted_at <= timezone.now()
    assert abs(second.started_at - first.started_at) < timedelta(seconds=1)


def test_what_was_claimed_and_given_back_has_not_started(store):
    result = tasks.echo.enqueue()
    (claimed,) = store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
    store.settle([GiveBack(claimed, charged=False)], WORKER)
    result.refresh()
    assert (result.status, result.started_at, result.last_attempted_at, result.attempts) == ("READY", None, None, 0)
    (claimed,) = store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
    store.release([(claimed.id, claimed.token)])
    result.refresh()
    assert (result.status, result.started_at, result.last_attempted_at, result.attempts) == ("READY", None, None, 0)


def test_a_result_remembers_the_attempt_whose_worker_vanished(store):
    with clock(NOON) as now:
        result = tasks.echo.enqueue()
        now.advance(seconds=1)
        store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
        now.advance(hours=1)
        result.refresh()
    assert (result.status, result.attempts) == ("READY", 1)
    assert result.started_at == result.last_attempted_at == NOON + timedelta(seconds=1)


def test_between_attempts_a_result_tells_when_they_started(store):
    result = tasks.fail.enqueue()
    for _ in range(2):
        again()
        work(store)
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 2)
    assert result.enqueued_at <= result.started_at < result.last_attempted_at <= timezone.now()
    assert result.finished_at is None


def test_started_at_is_that_of_the_first_attempt(store):
    result = tasks.fail.enqueue()
    starts = []
    for _ in range(3):
        again()
        work(store)
        result.refresh()
        starts.append((result.started_at, result.last_attempted_at))
    assert result.status == "FAILED"
    assert {first for first, _ in starts} == {starts[0][1]}
    assert starts[0][1] < starts[1][1] < starts[2][1] <= result.finished_at


def test_a_running_task_knows_when_its_first_attempt_started(store):
    seen = []

    def body():
        seen.append(seen_result[-1])
        raise ValueError

    seen_result = []
    task_started.connect(receiver := lambda task_result, **_: seen_result.append(task_result))
    try:
        play(body)
        for _ in range(2):
            again()
            work(store)
    finally:
        task_started.disconnect(receiver)
    first, second = seen
    assert first.started_at == first.last_attempted_at
    assert abs(second.started_at - first.started_at) < timedelta(seconds=1)
    assert second.last_attempted_at > first.last_attempted_at
    assert (first.attempts, second.attempts) == (1, 2)


def test_a_lease_that_has_expired_does_not_run(store):
    result = tasks.echo.enqueue()
    store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
    result.refresh()
    assert result.status == "RUNNING"
    Message.objects.update(leased_until=timezone.now() - timedelta(minutes=1))
    result.refresh()
    assert result.status == "READY"


# task_finished is sent once


@pytest.mark.parametrize(
    ("error", "statuses"),
    [
        (ValueError("no fuel"), ["READY", "RUNNING", "RUNNING", "FAILED"]),
        (SystemExit("no fuel"), ["READY", "RUNNING", "RUNNING", "FAILED"]),
        (Retry("busy"), ["READY", "RUNNING", "RUNNING", "FAILED"]),
        (Cancel("gone"), ["READY", "RUNNING", "FAILED"]),
        (Snooze(timedelta(hours=1)), ["READY", "RUNNING", "RUNNING"]),
    ],
    ids=["error", "exit", "retry", "cancel", "snooze"],
)
def test_a_task_finishes_once(store, sent, error, statuses):
    play(raising(error), task=tasks.play.using(max_attempts=2))
    for _ in range(2):
        again()
        work(store)
    assert [status for _, status, _ in sent] == statuses


class UnformattedError(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError("Nobody can look into it.")


def test_an_error_whose_traceback_can_not_be_formatted_ends_its_attempt(store):
    result = play(raising(UnformattedError("no fuel")), task=tasks.play.using(max_attempts=1))
    work(store)
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].message == "no fuel"
    assert result.errors[0].traceback.endswith("UnformattedError: <its traceback can't be printed>\n")


UNSTARTED = {
    "unknown task": ({"kind": "no.such.task"}, "delayedq.exceptions.UnknownTask", 0),
    "arguments that no longer fit": ({"payload": '{"args":[]}'}, "delayedq.exceptions.ArgumentsMismatch", 1),
    "arguments that can't be read": ({"payload": "["}, "delayedq.exceptions.ArgumentsMismatch", 1),
    "workers that vanished": ({"attempt": 8}, "delayedq.exceptions.WorkerVanished", 8),
}


def run_in_test(store):
    run_due(raise_failures=False)


@pytest.mark.parametrize("runs", [run_in_test, drained])
@pytest.mark.parametrize(("row", "error", "attempts"), UNSTARTED.values(), ids=UNSTARTED)
def test_a_task_that_could_not_start_is_finished_by_the_worker_that_gives_it_up(
    store, sent, settings, runs, row, error, attempts
):
    """FAILED, in Django's reference: it "raised an exception during execution, or was unable to start"."""
    settings.DELAYEDQ = {"DEPLOY_GRACE": timedelta(0)}
    result = tasks.remind.enqueue(7)
    Message.objects.update(**row)
    runs(store)
    ((_, status, told),) = [event for event in sent if event[0] is task_finished]
    assert (status, told.id, told.errors[-1].exception_class_path, told.attempts) == (
        "FAILED", result.id, error, attempts,
    )  # fmt: skip
    stored = default_task_backend.get_result(result.id)
    assert (stored.status, stored.attempts, stored.errors) == (told.status, told.attempts, told.errors)
    assert (stored.task.module_path, stored.task.priority) == (told.task.module_path, told.task.priority)
    assert abs(told.finished_at - stored.finished_at) < timedelta(seconds=5)


def test_what_another_version_may_run_is_not_finished(store, sent, settings):
    settings.DELAYEDQ = {"DEPLOY_GRACE": timedelta(minutes=10)}
    tasks.remind.enqueue(7)
    Message.objects.update(kind="no.such.task")
    drained(store)
    assert [signal for signal, _, _ in sent] == [task_enqueued]
    assert Message.objects.exists()


def test_what_is_taken_back_before_it_started_has_not_finished_executing(alias, sent):
    """Whoever took it back knows; `task_finished` is sent "once a Task has finished executing"."""
    tasks.remind.schedule_in(timedelta(hours=1), 7, key="a")
    assert tasks.remind.unschedule(key="a")
    assert sent == []


@pytest.mark.parametrize("runs", [run_in_test, drained])
def test_a_message_that_is_replaced_while_it_runs_finishes_once_for_each_of_its_contents(store, sent, runs):
    """The signal is sent in the thread of the task, before the end is stored: what was replaced did finish."""
    tasks.bodies["contract"] = lambda number: number or tasks.play.schedule_at(NOON, "contract", 1, key="a").id
    tasks.play.schedule_at(NOON, "contract", 0, key="a")
    runs(store)
    finished = [(status, result.args[1]) for signal, status, result in sent if signal is task_finished]
    assert finished == [("SUCCESSFUL", 0), ("SUCCESSFUL", 1)]
    assert not Message.objects.exists()


def test_an_attempt_that_lost_its_lease_does_not_say_that_its_task_finished(sent):
    leases = SharedLeases(8)
    attempt = playing(lambda: leases.report_lost(leases.entries()[0]), leases=leases)
    assert run(attempt).outcome == Returned()
    assert [signal for signal, _, _ in sent] == [task_started]


def test_a_failed_task_logs_one_error_of_django_at_its_end(store, caplog):
    tasks.fail.enqueue("no fuel")
    for _ in range(3):
        again()
        work(store)
    (record,) = [record for record in caplog.records if record.name == TASKS_LOGGER]
    assert record.levelname == "ERROR"
    assert "state=FAILED" in record.getMessage()
    assert "ValueError: no fuel" in record.exc_text


def test_djangos_lines_are_logged(store, caplog):
    with caplog.at_level("DEBUG", TASKS_LOGGER):
        result = tasks.nothing.enqueue()
        work(store)
    lines = [record.getMessage() for record in caplog.records if record.name == TASKS_LOGGER]
    words = ["enqueued", "state=RUNNING", "state=SUCCESSFUL"]
    assert all(word in line for word, line in zip(words, lines, strict=True))
    assert all(f"id={result.id} " in line and "None" not in line for line in lines)


# Errors and return values


def test_an_error_is_told_with_its_class_and_traceback(store):
    result = play(raising(SystemExit("no fuel")), task=tasks.play.using(max_attempts=1))
    work(store)
    result.refresh()
    assert (result.status, result.is_finished) == ("FAILED", True)
    assert result.errors[0].exception_class is SystemExit
    assert result.errors[0].traceback.endswith("SystemExit: no fuel\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_an_error_within_an_error_is_told(store):
    result = play(raising(ValueError(ValueError("no fuel"))), task=tasks.play.using(max_attempts=1))
    work(store)
    result.refresh()
    assert "no fuel" in result.errors[0].traceback
    assert result.errors[0].exception_class is ValueError


def test_a_value_that_can_not_be_stored_is_a_failure(store):
    result = play(lambda: lambda: True)
    work(store)
    result.refresh()
    assert result.status == "FAILED"
    assert issubclass(result.errors[0].exception_class, TypeError)
    assert result._return_value is None


def test_an_error_of_a_class_that_is_none_says_so(store):
    result = tasks.fail.using(max_attempts=1).enqueue()
    work(store)
    result.refresh()
    object.__setattr__(result.errors[0], "exception_class_path", "subprocess.run")
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        _ = result.errors[0].exception_class


@BOTH
def test_a_return_value_is_had(store, task):
    result = task.enqueue(1)
    work(store)
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", {"args": [1], "kwargs": {}})
    assert result.enqueued_at <= result.started_at <= result.finished_at


def test_a_context_has_the_result_and_the_attempt(store):
    seen = []
    tasks.bodies["context"] = seen.append
    result = tasks.contextual.enqueue("context")
    work(store)
    (context,) = seen
    assert isinstance(context, TaskContext)
    assert (context.attempt, context.task_result.id) == (1, result.id)
