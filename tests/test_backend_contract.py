"""The contract of a `django.tasks` backend: each case of Django's own tests of its backends, asked of ours."""

from __future__ import annotations

import gc
import pickle
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import transaction
from django.tasks import Task as DjangoTask
from django.tasks import TaskContext, default_task_backend, task_backends
from django.tasks import task as django_task
from django.tasks.exceptions import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
)
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone

from delayedq import Cancel, Retry, Snooze
from delayedq.backend import DelayedQBackend
from delayedq.exceptions import UnknownTask
from delayedq.models import Message
from delayedq.store.protocol import Lane
from delayedq.tasks import registered
from tests.app import tasks
from tests.worker.attempts import LEASE, WORKER, work

BACKEND = "delayedq.backend.DelayedQBackend"
BOTH = pytest.mark.parametrize("task", [tasks.echo, tasks.aecho], ids=["sync", "async"])
LATER = datetime(2040, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


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


# What enqueue returns is what is stored


@BOTH
def test_a_result_equals_the_stored_one(alias, task):
    result = task.enqueue(1, two=3)
    assert result == task.get_result(result.id)
    assert (result.args, result.kwargs, result.task, result.attempts) == ([1], {"two": 3}, task, 0)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert result.errors == []
    assert not result.is_finished
    assert asdict(task.get_result(result.id)) == asdict(result)


@BOTH
def test_an_awaited_result_equals_the_stored_one(alias, task):
    async def ask():
        result = await task.aenqueue(1)
        return result, await task.aget_result(result.id)

    result, found = async_to_sync(ask)()
    assert result == found


def test_a_result_shows_the_task_as_it_was_enqueued(alias):
    changed = tasks.send.using(priority=-7, queue_name="slow", max_attempts=5, run_after=LATER, metadata={"a": (1, 2)})
    result = changed.enqueue("gate")
    found = tasks.send.get_result(result.id)
    assert result == found
    assert found.task == changed
    assert (found.task.priority, found.task.queue_name, found.task.run_after) == (-7, "slow", LATER)
    assert (found.task.max_attempts, found.task.metadata) == (5, {"a": (1, 2)})


def test_the_history_shows_the_task_as_it_was_enqueued(store):
    changed = tasks.echo.using(priority=5, queue_name="mail")
    result = changed.enqueue()
    work(store)
    result.refresh()
    found = tasks.echo.get_result(result.id)
    assert found.task == changed
    assert found == result


def test_signals_and_contexts_show_the_task_as_it_was_enqueued(store, sent):
    changed = tasks.count_attempts.using(priority=5, queue_name="mail", metadata={"a": 1})
    changed.enqueue()
    work(store)
    assert [result.task for _, _, result in sent] == [changed] * 3


def test_a_queue_that_left_the_settings_does_not_hide_results(alias, settings):
    result = tasks.echo.using(queue_name="mail").enqueue()
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
    assert tasks.echo.get_result(result.id).task.queue_name == "mail"


@BOTH
def test_a_refreshed_result_is_the_same_while_nothing_happens(alias, task):
    async def refreshed(result):
        await result.arefresh()

    result = task.enqueue()
    before = asdict(result)
    result.refresh()
    assert asdict(result) == before
    async_to_sync(refreshed)(result)
    assert asdict(result) == before


def test_results_can_be_pickled(alias):
    result = tasks.echo.enqueue(7)
    assert pickle.loads(pickle.dumps(result)) == result


# The times of attempts


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
    store.claim([Lane("default", 0)], 1, LEASE, WORKER)
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


def test_a_failed_task_logs_one_error_of_django_at_its_end(store, caplog):
    tasks.fail.enqueue("no fuel")
    for _ in range(3):
        again()
        work(store)
    (record,) = [record for record in caplog.records if record.name == "django.tasks"]
    assert record.levelname == "ERROR"
    assert "state=FAILED" in record.getMessage()
    assert "ValueError: no fuel" in record.exc_text


def test_djangos_lines_are_logged(store, caplog):
    with caplog.at_level("DEBUG", "django.tasks"):
        result = tasks.nothing.enqueue()
        work(store)
    lines = [record.getMessage() for record in caplog.records if record.name == "django.tasks"]
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


# Tasks and what is refused


def test_a_task_is_one_of_django():
    assert isinstance(tasks.echo, DjangoTask)
    assert tasks.echo.get_backend() is task_backends["default"]
    assert (default_task_backend.alias, default_task_backend.options) == ("default", {})
    assert list(default_task_backend.check()) == []


def test_using_an_unknown_backend():
    with pytest.raises(InvalidTaskBackend, match="'unknown' doesn't exist"):
        tasks.echo.using(backend="unknown")


def test_without_a_backend_nothing_is_enqueued(settings):
    settings.TASKS = {}
    with pytest.raises(InvalidTaskBackend):
        tasks.echo.enqueue()


WAYS = {
    "enqueue": lambda task: task.enqueue(),
    "schedule_at": lambda task: task.schedule_at(LATER),
    "schedule_in": lambda task: task.schedule_in(timedelta(hours=1)),
    "enqueue_many": lambda task: task.enqueue_many([((), {})]),
    "enqueue_bulk": lambda task: task.enqueue_bulk([((), {})]),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_in_asks_the_backend(alias, settings, way):
    unknown = tasks.echo.using(queue_name="unknown")
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["queue-1"]}}
    with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid for backend"):
        way(unknown)
    assert not Message.objects.exists()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_in_goes_through_the_backend(alias, settings, way):
    settings.TASKS = {"default": {"BACKEND": "tests.test_backend_contract.Refusing"}}
    with pytest.raises(NotImplementedError, match="refused"):
        way(tasks.echo)


class Refusing(DelayedQBackend):
    @property
    def store(self):
        raise NotImplementedError("refused")


@pytest.mark.parametrize("way", ["schedule_at", "enqueue_many", "enqueue_bulk"])
def test_a_backend_without_our_verbs_is_named(settings, way):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    with pytest.raises(InvalidTask, match=r"'default' \(DummyBackend\) .* delayedq\.testing"):
        WAYS[way](tasks.echo)


def test_the_async_ways_in_do_the_same(alias):
    async def ask():
        await tasks.echo.aenqueue_bulk([((3,), {})])
        return await tasks.echo.aenqueue_many([((1,), {}), ((2,), {})])

    assert [scheduled.outcome for scheduled in async_to_sync(ask)()] == ["created", "created"]
    assert Message.objects.count() == 3


def test_an_argument_that_can_not_be_stored_is_a_type_error(alias):
    with pytest.raises(TypeError):
        tasks.echo.enqueue(object())


def test_a_message_is_enqueued_in_the_callers_transaction(alias):
    with transaction.atomic(using=alias):
        result = tasks.echo.enqueue()
        assert result.enqueued_at is not None
        assert Message.objects.count() == 1
    assert tasks.echo.get_result(result.id) == result


# Results that are not there


def refused(error, task, id_):
    """Of an await. The thread of its event loop ends with its executor, which the frames of the error keep."""
    with pytest.raises(error):
        async_to_sync(task.aget_result)(id_)
    gc.collect()


def test_a_result_that_is_not_there(alias):
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_result("123")
    refused(TaskResultDoesNotExist, tasks.echo, "123")


@BOTH
def test_a_result_of_another_task(alias, task):
    result = tasks.nothing.enqueue()
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        task.get_result(result.id)
    refused(TaskResultMismatch, task, result.id)


def forgotten():
    """A task for a while."""


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_a_result_whose_task_is_gone_can_be_shown(store, ended):
    task = django_task(priority=5, max_attempts=2)(forgotten)
    result = task.enqueue()
    if ended:
        work(store)
    del registered[task.module_path]
    found = default_task_backend.get_result(result.id)
    assert found.status == ("SUCCESSFUL" if ended else "READY")
    assert (found.task.module_path, found.task.name) == ("tests.test_backend_contract.forgotten", "forgotten")
    assert (found.task.priority, found.task.max_attempts) == (5, 2)
    with pytest.raises(UnknownTask):
        found.task.call()
    with pytest.raises(TaskResultMismatch):
        tasks.echo.get_result(result.id)


# Several backends, and their OPTIONS


@pytest.fixture
def backends(settings, postgresql, django_db_setup, django_db_blocker):
    """One backend on SQLite and one on PostgreSQL."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "default"}},
        "fast": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "postgresql"}},
    }
    with django_db_blocker.unblock():
        yield
        for alias in ("default", "postgresql"):
            Message.objects.using(alias).all().delete()


def test_two_backends_have_two_databases(backends):
    here, there = tasks.echo.enqueue(1), tasks.echo.using(backend="fast").enqueue(2)
    tasks.echo.using(backend="fast").schedule_at(LATER, 3, key="a")
    tasks.echo.using(backend="fast").enqueue_many([((4,), {})])

    assert (here.backend, there.backend) == ("default", "fast")
    assert Message.objects.using("default").count() == 1
    assert Message.objects.using("postgresql").count() == 3
    assert here == task_backends["default"].get_result(here.id)
    found = task_backends["fast"].get_result(there.id)
    assert found == there
    assert (found.backend, found.task.backend) == ("fast", "fast")
    assert tasks.echo.using(backend="fast").unschedule(key="a")
    assert not tasks.echo.unschedule(key="a")


def add(a, b):
    return a + b


def test_options_are_the_defaults_of_tasks_that_do_not_say(settings):
    minute = timedelta(minutes=1)
    options = {"MAX_ATTEMPTS": 2, "BACKOFF": minute, "TIMEOUT": 2 * minute}
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    try:
        made = django_task(add)
        assert (made.max_attempts, made.backoff, made.timeout) == (2, minute, 2 * minute)
        made = django_task(max_attempts=7, backoff=2 * minute, timeout=minute)(add)
        assert (made.max_attempts, made.backoff, made.timeout) == (7, 2 * minute, minute)
    finally:
        registered.pop("tests.test_backend_contract.add", None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"DATABASES": "x"}, r"\['OPTIONS'\]\['DATABASES'\] is unknown; known are DATABASE, MAX_ATTEMPTS"),
        ({"DATABASE": "none"}, r"DATABASE.* must be a key of DATABASES \(default.*\), not 'none'"),
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS.* must be a number from 1 to 32,000, not 0"),
        ({"BACKOFF": 5}, "BACKOFF.* a timedelta"),
        ({"TIMEOUT": 5}, "TIMEOUT.* a timedelta over zero, not 5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_options_are_a_message_of_check(settings, options, problem):
    settings.TASKS = {"second": {"BACKEND": BACKEND, "OPTIONS": options}, "default": {"BACKEND": BACKEND}}
    (message,) = [message for message in run_checks() if message.id == "delayedq.E005"]
    assert message.msg.startswith("TASKS['second']")
    assert re.search(problem, message.msg)


def test_a_backend_without_its_app_is_a_message_of_check(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("delayedq")]
    (message,) = default_task_backend.check()
    assert (message.id, message.hint) == ("delayedq.E006", 'Add "delayedq" to INSTALLED_APPS and run migrate.')


def test_a_queue_apart_from_the_models_of_its_tasks_is_a_message_of_check(backends, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "postgresql"}}}
    warned = [message for message in run_checks() if message.id == "delayedq.W007"]
    assert any("'tests_app' are stored in 'postgresql', its models in 'default'" in message.msg for message in warned)
