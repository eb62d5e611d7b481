"""The contract of a `django.tasks` backend: each case of Django's own tests of its backends, asked of ours."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import results
from delayedq import task as our_task
from delayedq.backend import DelayedQBackend
from delayedq.compat import (
    TASKS_LOGGER,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_backends,
)
from delayedq.compat import Task as DjangoTask
from delayedq.compat import task as django_task
from delayedq.exceptions import UnknownTask
from delayedq.models import FinishedMessage, Message
from delayedq.tasks import registered
from delayedq.testing import run_due
from tests.app import tasks
from tests.router import ChosenDatabase
from tests.worker.attempts import drained, work

BACKEND = "delayedq.backend.DelayedQBackend"
BOTH = pytest.mark.parametrize("task", [tasks.echo, tasks.aecho], ids=["sync", "async"])
#: Of what is refused, or goes another way, before a database is asked.
ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
LATER = datetime(2040, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture(autouse=True, scope="module")
def _few_objects():
    """A look for garbage takes half a second, if it looks at all that the tests have imported so far."""
    gc.collect()
    gc.freeze()


def refused(error, ask, argument):
    """Of an await. The thread of its event loop ends with its executor, which the frames of the error keep."""
    with pytest.raises(error):
        async_to_sync(ask)(argument)
    gc.collect()


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


def test_enqueuing_and_reading_take_a_statement_each(alias):
    with CaptureQueriesContext(connections[alias]) as enqueued:
        result = tasks.echo.enqueue(1)
    with CaptureQueriesContext(connections[alias]) as read:
        tasks.echo.get_result(result.id)
    own = [query for query in enqueued if "delayedq_message" in query["sql"]]
    assert len(own) == (2 if alias == "mariadb" else 1)  # MySQL does not say what it has stored
    assert len(read) == 1


@pytest.mark.parametrize("call", [(tasks.echo, 7), (tasks.deliver, "Ann")], ids=["plain", "channel"])
def test_what_has_ended_before_it_was_read_is_enqueued_all_the_same(store, call):
    """Where the offer does not return when it was created: a worker may be faster than the question."""
    task, argument = call
    ended = []

    def end_first(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "created_at" in sql and not ended:
            ended.append(sql)
            with ThreadPoolExecutor(1) as worker:  # which closes its own connection
                worker.submit(drained, store).result()
        return execute(sql, params, many, context)

    with connections[store.alias].execute_wrapper(end_first):
        result = task.enqueue(argument)
    drained(store)
    assert result.status is TaskResultStatus.READY
    assert result.enqueued_at == FinishedMessage.objects.get(id=result.id).created_at


def test_what_enqueue_returned_is_no_view_of_what_is_stored(store):
    result = tasks.echo.enqueue(1)
    work(store)
    assert (result.status, result.attempts, result.finished_at) == ("READY", 0, None)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


def test_results_compare_by_what_they_say():
    result = results.make(tasks.echo, 1, TaskResultStatus.READY, [], {}, "default", enqueued_at=LATER)
    assert result == replace(result)
    assert result != replace(result, status=TaskResultStatus.RUNNING)
    assert result != replace(result, last_attempted_at=LATER)
    assert result != replace(result, id="2")
    assert result != "not a result"


# Tasks and what is refused


def test_a_task_is_one_of_django():
    assert isinstance(tasks.echo, DjangoTask)
    assert tasks.echo.get_backend() is task_backends["default"]
    assert (default_task_backend.alias, default_task_backend.options) == ("default", {})
    assert list(default_task_backend.check()) == []


def test_using_an_unknown_backend():
    with pytest.raises(InvalidTaskBackend, match="'unknown' doesn't exist"):
        tasks.echo.using(backend="unknown")


def test_using_a_backend_that_can_not_be_imported(settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND}, "missing": {"BACKEND": "does.not.exist"}}
    with pytest.raises(InvalidTaskBackend, match=r"'does\.not\.exist': No module named 'does'"):
        tasks.echo.using(backend="missing")


def test_using_nothing_is_an_equal_task():
    changed = tasks.echo.using()
    assert changed == tasks.echo
    assert changed is not tasks.echo
    later = tasks.echo.using(run_after=LATER)
    assert (later.using(priority=10).run_after, later.priority) == (LATER, 0)


@BOTH
def test_a_task_is_called_in_both_worlds(task):
    expected = {"args": [1], "kwargs": {}}
    assert task.call(1) == expected
    assert async_to_sync(task.acall)(1) == expected


@pytest.mark.parametrize("make", [our_task, django_task], ids=["ours", "Django's"])
def test_when_a_task_runs_is_not_for_its_decorator_to_say(make):
    """Ours names the cure, as Django 6.1's does; that of 6.0 and the backport's only name the argument."""
    cure = r"run_after cannot be defined statically .* \.using\(run_after=\.\.\.\)"
    with pytest.raises(TypeError, match=cure if make is our_task or django.VERSION >= (6, 1) else "run_after"):
        make(run_after=LATER)(forgotten)


@pytest.mark.parametrize("path", ["does.not.exist.fake_task", "builtins.any"])
def test_unpickling_what_is_no_task(path):
    with pytest.raises(ValueError, match=f"Expected '{path}' to point to a Task instance"):
        type(tasks.echo)._reconstruct({"func": path})


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
    "unschedule": lambda task: task.unschedule(key="a"),
    "aenqueue": lambda task: async_to_sync(task.aenqueue)(),
    "aschedule_at": lambda task: async_to_sync(task.aschedule_at)(LATER),
    "aschedule_in": lambda task: async_to_sync(task.aschedule_in)(timedelta(hours=1)),
    "aenqueue_many": lambda task: async_to_sync(task.aenqueue_many)([((), {})]),
    "aenqueue_bulk": lambda task: async_to_sync(task.aenqueue_bulk)([((), {})]),
    "aunschedule": lambda task: async_to_sync(task.aunschedule)(key="a"),
}


@ONE_DATABASE
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_in_asks_the_backend(alias, settings, way):
    unknown = tasks.echo.using(queue_name="unknown")
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["queue-1"]}}
    with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid for backend"):
        way(unknown)
    gc.collect()  # see `refused`
    assert not Message.objects.exists()


@ONE_DATABASE
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_in_goes_through_the_backend(alias, settings, way):
    settings.TASKS = {"default": {"BACKEND": "tests.test_backend_contract.Refusing"}}
    with pytest.raises(NotImplementedError, match="refused"):
        way(tasks.echo)
    gc.collect()


class Refusing(DelayedQBackend):
    @property
    def store(self):
        raise NotImplementedError("refused")


@pytest.mark.parametrize("way", ["schedule_at", "enqueue_many", "enqueue_bulk"])
def test_a_backend_without_our_verbs_is_named(settings, way):
    settings.TASKS = {"default": {"BACKEND": f"{TASKS_LOGGER}.backends.dummy.DummyBackend"}}
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
    refused(TypeError, tasks.echo.aenqueue, object())


def test_a_message_is_enqueued_in_the_callers_transaction(alias):
    with transaction.atomic(using=alias):
        result = tasks.echo.enqueue()
        assert result.enqueued_at is not None
        assert Message.objects.count() == 1
    assert tasks.echo.get_result(result.id) == result


# Results that are not there


def test_results_are_read_from_the_database_that_writes(alias, settings):
    """The reading one may be a replica that is behind; here it does not even exist."""
    settings.DATABASE_ROUTERS = ["tests.test_backend_contract.WithReplica"]
    for ended in (False, True):
        result = tasks.echo.enqueue(1)
        if ended:
            run_due()
        assert tasks.echo.get_result(result.id).is_finished is ended
        assert async_to_sync(tasks.echo.aget_result)(result.id).is_finished is ended


class WithReplica(ChosenDatabase):
    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return ChosenDatabase.alias


def test_a_result_that_is_not_there(alias):
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_result("123")
    refused(TaskResultDoesNotExist, tasks.echo.aget_result, "123")


@BOTH
def test_a_result_of_another_task(alias, task):
    result = tasks.nothing.enqueue()
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        task.get_result(result.id)
    refused(TaskResultMismatch, task.aget_result, result.id)


def forgotten():
    """A task for a while."""


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_a_result_whose_task_is_gone_can_be_shown(store, ended):
    task = our_task(priority=5, max_attempts=2)(forgotten)
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
