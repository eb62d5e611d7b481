"""A whole worker in the test's process: what becomes of messages, and what the database sees of it."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from math import inf

import pytest
from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone

from delayedq.cron.beat import beat
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Offer
from delayedq.worker import poller, pool
from tests.app import chores, tasks
from tests.app.models import Mark
from tests.router import ChosenDatabase
from tests.store.given import kill_others
from tests.worker.attempts import PATIENCE
from tests.worker.conftest import eventually


def ended(key=None):
    return FinishedMessage.objects.get(key=key)


def due_at_once(task, *args, key="message"):
    task.schedule_at(timezone.now(), *args, key=key)


def keep_draining(drain):
    """Until nothing is live: retries become due a little later."""
    eventually(lambda: drain() and not Message.objects.exists())


# What becomes of a message


def test_a_result_is_kept(drain):
    due_at_once(chores.stumble, 0)
    drain()
    message = ended("message")
    assert (message.outcome, message.result, message.attempts, message.errors) == ("succeeded", "1", 1, None)
    assert message.worker == "test"
    assert message.scheduled_at <= message.started_at <= message.finished_at


def test_an_error_is_retried_until_it_succeeds_and_is_remembered(drain):
    due_at_once(chores.stumble, 2)
    keep_draining(drain)
    message = ended("message")
    assert (message.outcome, message.result, message.attempts) == ("succeeded", "3", 3)
    errors = json.loads(message.errors)
    assert [(error["attempt"], error["exception"], error["message"]) for error in errors] == [
        (1, "builtins.ValueError", "not yet"),
        (2, "builtins.ValueError", "not yet"),
    ]
    assert 'raise ValueError("not yet")' in errors[0]["traceback"]


def test_after_max_attempts_it_is_a_dead_letter_and_blocked_nobody(drain):
    due_at_once(chores.stumble, 99)
    due_at_once(chores.note, "behind", key="behind")
    keep_draining(drain)
    assert ended("behind").outcome == "succeeded"
    message = ended("message")
    assert (message.outcome, message.attempts, len(json.loads(message.errors))) == ("failed", 3, 3)


def test_a_failed_message_waits_for_its_backoff_and_does_not_loop_hot(drain):
    due_at_once(chores.fail_and_wait)
    drain()
    message = Message.objects.get()
    assert message.attempt == 1
    assert message.scheduled_at > message.scheduled_at_initially


def test_a_task_that_asks_for_a_retry_sets_its_own_delay(drain):
    due_at_once(chores.ask_again)
    keep_draining(drain)
    assert (ended("message").outcome, ended("message").attempts) == ("succeeded", 3)


def test_a_snooze_costs_no_attempt(drain):
    due_at_once(chores.snooze_thrice)
    keep_draining(drain)
    message = ended("message")
    assert (message.outcome, message.attempts, message.errors) == ("succeeded", 1, None)
    assert Mark.objects.filter(name="snoozed").count() == 4


def test_a_task_may_cancel_its_message(drain):
    due_at_once(chores.cancel_itself)
    drain()
    message = ended("message")
    assert message.outcome == "cancelled"
    assert json.loads(message.errors)[0]["message"] == "no longer needed"


def test_a_task_over_its_timeout_fails_and_its_thread_goes_on(drain, options):
    due_at_once(chores.spin)
    due_at_once(chores.note, "behind", key="behind")
    drain(replace(options, threads=1))
    assert ended("behind").outcome == "succeeded"
    assert json.loads(ended("message").errors)[0]["exception"] == "delayedq.exceptions.TaskTimeout"


def test_async_tasks_wait_together(drain, monkeypatch):
    barrier = asyncio.Barrier(100)
    monkeypatch.setitem(tasks.bodies, "meet", lambda: asyncio.wait_for(barrier.wait(), PATIENCE))
    tasks.aplay.enqueue_many((("meet",), {}) for _ in range(100))
    due_at_once(chores.note_async, "async")
    drain()
    assert FinishedMessage.objects.succeeded().count() == 101
    assert Mark.objects.get().value == "1"


def test_each_end_is_stored_at_once_if_the_settings_say_so(drain, options, monkeypatch):
    """The second task returns as soon as the end of the first one is in the history."""
    monkeypatch.setattr(pool, "FLUSH_AFTER", 60.0)
    monkeypatch.setitem(tasks.bodies, "wait", lambda: eventually(FinishedMessage.objects.exists))
    due_at_once(tasks.play, "wait", key="waits")
    due_at_once(chores.note, "quick", key="quick")
    drain(replace(options, acknowledge_each=True))
    assert (ended("quick").outcome, ended("waits").outcome) == ("succeeded", "succeeded")


# Rows that no attempt can run


def raw(store, **fields):
    given = {"queue": "default", "kind": chores.note.module_path, "payload": "{}", "key": "bad", "max_attempts": 5}
    return store.offer(Offer(**given | fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": "os.system", "payload": '{"args": ["true"]}'}, "No task is registered as 'os.system'"),
        ({"kind": "tests.app.chores.Mark"}, "No task is registered"),
        ({"payload": "not json"}, "ArgumentsMismatch"),
        ({"payload": '{"args": [1, 2, 3, 4]}'}, "do not fit"),
        ({"payload": '{"kwargs": {"nobody": 1}}'}, "do not fit"),
        ({"payload": '{"args": [{"$": "uuid", "v": "?"}]}'}, "ArgumentsMismatch"),
    ],
)
def test_a_row_that_cannot_run_is_set_aside_after_the_grace_period_and_blocks_nobody(
    store, drain, settings, fields, reason
):
    settings.DELAYEDQ = {"DEPLOY_GRACE": timedelta(0)}
    raw(store, **fields)
    due_at_once(chores.note, "behind", key="behind")
    drain()
    assert ended("behind").outcome == "succeeded"
    message = ended("bad")
    assert message.outcome == "failed"
    assert reason in message.errors


def test_a_message_whose_worker_vanished_in_its_last_attempt_is_not_started_again(store, drain):
    due_at_once(chores.die)
    Message.objects.update(attempt=3, lease_token=1, leased_until=timezone.now() - timedelta(seconds=1))
    drain()
    message = ended("message")
    assert (message.outcome, message.attempts, message.started_at) == ("failed", 3, None)
    assert "WorkerVanished" in message.errors


def test_an_end_that_can_not_be_stored_is_left_to_its_lease_and_blocks_nobody(drain, caplog):
    """As after a sequence was reset: the history has a row under that id already."""
    due_at_once(chores.note, "first", key="taken")
    taken = Message.objects.get()
    FinishedMessage.objects.create(
        id=taken.id, finished_at=timezone.now(), scheduled_at=timezone.now(), scheduled_at_initially=timezone.now(),
        created_at=timezone.now(), priority=0, attempts=1, max_attempts=1, outcome="succeeded", queue="default",
        kind="another", payload="{}",
    )  # fmt: skip
    for number in range(5):
        due_at_once(chores.note, "behind", key=f"behind {number}")
    drain()
    assert FinishedMessage.objects.filter(key__startswith="behind").count() == 5
    assert Message.objects.get().key == "taken"
    assert "can't be stored" in caplog.text


# Replaced, locked, away


class Gate:
    """Where tasks wait until it is opened."""

    def __init__(self):
        self.reached, self.opened, self.seen = threading.Event(), threading.Event(), []

    def __call__(self, name):
        self.seen.append(f"{name} began")
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        self.seen.append(f"{name} ended")


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setitem(tasks.bodies, "gate", gate)
    yield gate
    gate.opened.set()


def test_a_message_replaced_while_it_runs_runs_once_more_with_the_new_arguments(drain, gate):
    due_at_once(tasks.play, "gate", "old")
    worker = threading.Thread(target=drain)
    worker.start()
    assert gate.reached.wait(PATIENCE)
    due_at_once(tasks.play, "gate", "new")
    gate.opened.set()
    worker.join()
    assert gate.seen == ["old began", "old ended", "new began", "new ended"]
    superseded, succeeded = FinishedMessage.objects.order_by("started_at")
    assert (superseded.outcome, succeeded.outcome) == ("superseded", "succeeded")
    assert '"old"' in superseded.payload
    assert '"new"' in succeeded.payload


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_an_open_transaction_that_locks_a_message_stops_nobody_else(drain, gate):
    due_at_once(tasks.play, "gate", "locked", key="locked")
    worker = threading.Thread(target=drain)
    worker.start()
    assert gate.reached.wait(PATIENCE)
    with transaction.atomic(using=ChosenDatabase.alias):
        due_at_once(chores.note, "moved", key="other")
        tasks.play.schedule_at(timezone.now() + timedelta(hours=1), "gate", "locked", key="locked")
        gate.opened.set()
        free = threading.Thread(target=offer_elsewhere)
        free.start()
        free.join()
        eventually(lambda: Mark.objects.filter(name="free").exists())
    worker.join()
    assert Message.objects.get().key == "locked"
    assert ended("locked").outcome == "superseded"


def offer_elsewhere():
    chores.note.enqueue("free")
    connections.close_all()


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_acks_survive_the_loss_of_every_connection(drain, caplog, monkeypatch):
    tickets = threading.Semaphore(0)  # some tasks are left to each loss

    def mark(number):
        assert tickets.acquire(timeout=PATIENCE)
        Mark.objects.create(name=f"{number}")

    monkeypatch.setitem(tasks.bodies, "mark", mark)
    tasks.play.enqueue_many((("mark", number), {}) for number in range(30))
    worker = threading.Thread(target=drain)
    worker.start()
    for _ in range(3):
        done = Mark.objects.count()
        tickets.release(6)
        eventually(lambda done=done: Mark.objects.count() > done)
        kill_others(connections[ChosenDatabase.alias])
    tickets.release(30)
    worker.join()
    assert "Next try in" in caplog.text
    assert FinishedMessage.objects.succeeded().count() + Message.objects.count() == 30
    assert not FinishedMessage.objects.failed().exists()


# What the database sees


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_statements_are_per_batch_and_not_per_message(drain):
    chores.nothing.enqueue_many(((number,), {}) for number in range(2_000))
    with statements_of_all_threads() as statements:
        drain()
    assert FinishedMessage.objects.count() == 2_000
    assert len(statements) < 1_000


def test_an_idle_worker_does_not_write(store, drain, monkeypatch):
    """On SQLite an idle write transaction would lock the file for everybody. The first worker says that it is there."""
    monkeypatch.setattr(poller, "UNHEARD", inf)  # during a long scan, as on a busy machine, it claims what may be due
    beat(store, {})
    chores.note.schedule_at(timezone.now() + timedelta(hours=1), "later", key="later")
    with statements_of_all_threads() as statements:
        drain()
    assert not [one for one in statements if not one.lstrip("( \n").startswith(("SELECT", "WITH", "PRAGMA", "LISTEN"))]
    assert any("delayedq_message" in one for one in statements)


@contextmanager
def statements_of_all_threads():
    """Whatever goes through a connection that is opened in the block."""
    statements = []

    def record(execute, sql, params, many, context):
        statements.append(sql)
        return execute(sql, params, many, context)

    def watch(connection, **_):
        connection.execute_wrappers.append(record)

    connection_created.connect(watch)
    connections.close_all()
    try:
        yield statements
    finally:
        connection_created.disconnect(watch)
        connections[ChosenDatabase.alias].execute_wrappers.clear()


def test_higher_priorities_go_first(drain, options):
    for priority in (-5, 100, 0, -100, 50):
        chores.note.using(priority=priority).enqueue(f"{priority}")
    drain(replace(options, threads=1))
    assert [int(mark.name) for mark in Mark.objects.order_by("id")] == [100, 50, 0, -5, -100]


def test_tasks_run_within_their_own_connection(drain):
    """Each thread has a connection of its own, closed when the worker ends."""
    chores.note.enqueue("x")
    drain()
    assert Mark.objects.count() == 1
