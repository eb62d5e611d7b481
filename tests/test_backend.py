"""The `django.tasks` backend: what a message looks like from the moment it is enqueued."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.dispatch import Signal

from delayedq import Cancel, Retry, Snooze, current_message
from delayedq.backend import DelayedQBackend
from delayedq.compat import (
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_enqueued,
    task_finished,
    task_started,
)
from delayedq.exceptions import ReferenceGone
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.worker.attempts import LEASE, WORKER, outcome_of, work

RICH = [
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    date(2026, 3, 8),
    timedelta(seconds=1.5),
    Decimal("1.50"),
    UUID(int=7),
    b"\x00\xff",
    ("a", {"b"}),
]


def raising(error):
    """Enqueue a task that raises it."""

    def body():
        raise error

    tasks.bodies["raising"] = body
    return tasks.play.enqueue("raising")


def test_it_says_what_it_can_do():
    assert isinstance(default_task_backend.supports_defer, bool)
    backend = default_task_backend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


# Results of what lives


def test_what_waits_is_ready(alias):
    result = tasks.remind.enqueue(7, gate="B7")

    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [7], {"gate": "B7"})
    assert (result.backend, result.task, result.attempts) == ("default", tasks.remind, 0)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    found = tasks.remind.get_result(result.id)
    assert (found.id, found.status, found.args, found.kwargs) == (result.id, "READY", [7], {"gate": "B7"})
    assert abs(found.enqueued_at - result.enqueued_at) < timedelta(seconds=5)
    with pytest.raises(ValueError, match="not finished"):
        _ = found.return_value


def test_what_is_leased_is_running(store):
    result = tasks.remind.enqueue(7)
    store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))

    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.RUNNING, 1, [WORKER])
    assert not result.is_finished


def test_what_was_scheduled_by_key_is_found_too(alias):
    scheduled = tasks.remind.schedule_in(timedelta(hours=1), 7, key="a")
    assert tasks.remind.get_result(scheduled.id).status == TaskResultStatus.READY


def test_a_failed_attempt_shows_while_the_next_one_waits(store):
    result = tasks.fail.enqueue("no fuel")
    work(store)

    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.READY, 1, [WORKER])
    assert [error.exception_class for error in result.errors] == [ValueError]


# Results of what ended


def test_what_succeeded_has_its_return_value(store):
    result = tasks.remind.enqueue(7, gate="B7")
    work(store)

    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "7 at B7")
    assert (result.attempts, result.worker_ids, result.errors) == (1, [WORKER], [])
    assert result.started_at == result.last_attempted_at <= result.finished_at


def test_arguments_and_return_values_are_as_rich_as_those_of_the_task(store):
    result = tasks.echo.enqueue(*RICH, rich=RICH)
    assert (result.args, result.kwargs) == (RICH, {"rich": RICH})
    work(store)

    found = tasks.echo.get_result(result.id)
    assert (found.args, found.kwargs) == (RICH, {"rich": RICH})
    assert found.return_value == {"args": RICH, "kwargs": {"rich": RICH}}


def test_returning_nothing_is_a_success(store):
    result = tasks.nothing.enqueue()
    work(store)
    result.refresh()
    assert result.return_value is None


def test_what_failed_has_all_its_errors(store):
    result = tasks.fail.using(max_attempts=1).enqueue("no fuel")
    work(store)

    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.FAILED, 1, True)
    (error,) = result.errors
    assert (error.exception_class_path, error.exception_class) == ("builtins.ValueError", ValueError)
    assert error.traceback.startswith("Traceback")
    assert "raise ValueError(reason)" in error.traceback
    assert error.traceback.endswith("ValueError: no fuel\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_attempts_and_errors_add_up(store):
    result = tasks.fail.enqueue("no fuel")
    for _ in range(3):
        Message.objects.update(scheduled_at=datetime(2026, 1, 1, tzinfo=UTC))
        work(store)

    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
    assert (len(result.errors), result.worker_ids) == (3, [WORKER] * 3)


def test_what_was_cancelled_is_failed_with_its_reason(store):
    result = raising(Cancel("the flight left"))
    work(store)

    result.refresh()
    assert outcome_of(result.id) == "cancelled"
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[-1].exception_class is Cancel
    assert "the flight left" in result.errors[-1].traceback


def test_what_was_unscheduled_is_failed_without_an_attempt(alias):
    scheduled = tasks.remind.schedule_in(timedelta(hours=1), 7, key="a")
    tasks.remind.unschedule(key="a")

    result = tasks.remind.get_result(scheduled.id)
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.FAILED, 0, [])


def test_what_asked_for_a_retry_or_a_snooze_is_ready_again(store):
    retried, snoozed = raising(Retry("busy", delay=timedelta(hours=1))), None
    work(store)
    snoozed = raising(Snooze(timedelta(hours=1)))
    work(store)

    retried.refresh()
    snoozed.refresh()
    assert (retried.status, retried.attempts, len(retried.errors)) == (TaskResultStatus.READY, 1, 1)
    assert (snoozed.status, snoozed.attempts, len(snoozed.errors)) == (TaskResultStatus.READY, 0, 0)


# Model instances


@pytest.mark.parametrize("task", [tasks.echo, tasks.aecho], ids=["sync", "async"])
def test_an_instance_is_stored_as_a_reference_and_loaded_for_the_task(store, task):
    crew = Group.objects.create(name="crew")
    result = task.enqueue(crew)
    assert "crew" not in Message.objects.get().payload
    Group.objects.update(name="ground crew")

    (ended,) = work(store)
    assert ended.error is None
    (loaded,) = task.get_result(result.id).return_value["args"]
    assert loaded == crew
    assert loaded.name == "ground crew"


@pytest.mark.parametrize("task", [tasks.nothing, tasks.aecho], ids=["sync", "async"])
def test_a_message_whose_instance_is_gone_fails_at_once_and_says_so(store, task):
    crew = Group.objects.create(name="crew")
    result = task.enqueue(crew)
    crew.delete()

    (ended,) = work(store)
    assert isinstance(ended.error, ReferenceGone)
    row = FinishedMessage.objects.get(id=result.id)
    assert (row.outcome, row.attempts) == ("failed", 1)
    assert "delayedq.exceptions.ReferenceGone" in row.errors


def test_the_result_of_a_message_whose_instance_is_gone_can_still_be_read(store):
    crew = Group.objects.create(name="crew")
    result = tasks.nothing.enqueue(crew)
    crew.delete()
    work(store)

    found = tasks.nothing.get_result(result.id)
    assert found.status == TaskResultStatus.FAILED
    assert found.errors[-1].exception_class is ReferenceGone


def test_a_result_can_be_refreshed_though_its_instance_is_gone(alias):
    crew = Group.objects.create(name="crew")
    result = tasks.nothing.enqueue(crew)
    crew.delete()

    result.refresh()
    assert result.status == TaskResultStatus.READY


# What there is not


@pytest.mark.parametrize("id_", ["0", "-1", "123456789", "9" * 40, "", "None", "seven", "7.0", "\0"])
def test_an_id_that_nothing_has(alias, id_):
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(id_)


def test_a_result_of_another_task_is_a_mismatch(alias):
    result = tasks.remind.enqueue(7)
    with pytest.raises(TaskResultMismatch, match=r"tests\.app\.tasks\.remind"):
        tasks.echo.get_result(result.id)
    assert tasks.remind.using(priority=5).get_result(result.id).id == result.id


def test_results_are_there_for_async_code(store):
    async def ask():
        result = await tasks.aecho.aenqueue(7)
        before = (await tasks.aecho.aget_result(result.id)).status
        await result.arefresh()
        return before, result

    before, result = async_to_sync(ask)()
    work(store)
    async_to_sync(result.arefresh)()
    assert (before, result.status) == (TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL)


# Contexts and signals


def test_the_context_tells_the_attempt(store):
    result = tasks.count_attempts.enqueue(start=10)
    Message.objects.update(attempt=2)
    work(store)

    result.refresh()
    assert result.return_value == 13
    assert result.kwargs == {"start": 10}


@pytest.fixture
def heard():
    """The signals of django.tasks that were sent, in their order."""
    events, signals = [], {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {}
    for name, signal in signals.items():

        def receive(sender, task_result, name=name, **_):
            events.append((name, sender, task_result.id, str(task_result.status)))

        receivers[name] = receive
        signal.connect(receive)
    yield events
    for name, signal in signals.items():
        assert isinstance(signal, Signal)
        signal.disconnect(receivers[name])


@pytest.mark.parametrize("task", [tasks.nothing, tasks.aecho], ids=["sync", "async"])
def test_djangos_signals_are_sent_in_the_life_of_a_message(store, heard, task):
    result = task.enqueue()
    work(store)

    assert heard == [
        ("enqueued", DelayedQBackend, result.id, "READY"),
        ("started", DelayedQBackend, result.id, "RUNNING"),
        ("finished", DelayedQBackend, result.id, "SUCCESSFUL"),
    ]


def test_a_failed_task_is_told_as_failed(store, heard):
    result = tasks.fail.using(max_attempts=1).enqueue()
    work(store)
    assert heard[-1] == ("finished", DelayedQBackend, result.id, "FAILED")


def test_a_receiver_that_raises_harms_nothing(store):
    def receive(**_):
        raise RuntimeError("a bad receiver")

    task_started.connect(receive)
    task_finished.connect(receive)
    try:
        result = tasks.remind.enqueue(7)
        work(store)
    finally:
        task_started.disconnect(receive)
        task_finished.disconnect(receive)
    result.refresh()
    assert result.return_value == "7 at None"


def test_a_task_sees_its_message(store):
    seen = []
    tasks.bodies["look"] = lambda: seen.append(current_message())
    tasks.play.using(metadata={"trace": "abc"}, queue_name="mail", max_attempts=5).enqueue("look")
    work(store)

    (message,) = seen
    assert (message.kind, message.queue, message.key) == ("tests.app.tasks.play", "mail", None)
    assert (message.attempt, message.max_attempts, message.metadata) == (1, 5, {"trace": "abc"})
    assert message.scheduled_at == message.scheduled_at_initially
    assert not message.lease_lost
