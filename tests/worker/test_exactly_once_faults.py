"""Exactly-once tasks in whole workers: killed at the worst moments, late, replaced, and renewed."""

from __future__ import annotations

import signal
import threading

import pytest
from django.db import connections
from django.utils import timezone

from delayedq import current_message
from delayedq.models import FinishedMessage, Message
from delayedq.signals import lease_lost
from delayedq.worker import executor
from delayedq.worker.pool import Pool
from tests.app import once, tasks
from tests.app.models import Mark
from tests.store.given import together
from tests.worker.conftest import eventually, marked
from tests.worker.exactly_once_tasks import ROW_LOCKS

pytestmark = pytest.mark.slow


def marks():
    return list(Mark.objects.order_by("id").values_list("name", flat=True))


def all_ended():
    return not Message.objects.exists()


def stop(worker):
    worker.send(signal.SIGTERM)
    code, output = worker.finish()
    assert code == 0, output
    return output


# Killed


@pytest.mark.parametrize("fault", ["before it wrote", "after it wrote", "before the commit"])
def test_killed_before_its_commit_it_runs_again_and_its_effects_are_there_once(workers, fault):
    once.pay.enqueue(fault)
    one = workers("--lease", "1")
    eventually(all_ended)

    assert "signal SIGKILL" in stop(one)
    assert FinishedMessage.objects.get().attempts == 2
    assert marks() == ["paid"]


def test_killed_after_its_commit_it_has_ended(workers):
    once.pay.enqueue("after the commit")
    one = workers("--lease", "1")
    eventually(lambda: marked("killed"))
    ended = FinishedMessage.objects.get()

    assert (ended.outcome, ended.attempts, all_ended()) == ("succeeded", 1, True)
    stop(one)
    assert marks() == ["paid", "killed"]


def test_killed_again_and_again_the_effects_of_each_message_are_there_once(workers):
    once.nap.enqueue_many(((f"{number}", 0.002), {}) for number in range(200))
    for _ in range(2):
        one = workers("--lease", "1", "--processes", "2")
        before = FinishedMessage.objects.count()
        eventually(lambda before=before: FinishedMessage.objects.count() > before or all_ended())
        one.send_all(signal.SIGKILL)
        one.finish()
    stop_me = workers("--lease", "1", "--processes", "2")
    eventually(all_ended)
    stop(stop_me)

    assert sorted(marks()) == sorted(f"{number} {what}" for number in range(200) for what in ("began", "ended"))
    assert FinishedMessage.objects.succeeded().count() == 200


# In good order


def test_the_loop_does_not_end_it_a_second_time(drain, caplog):
    once.nap.enqueue_many(((f"{number}", 0.0), {}) for number in range(20))
    assert drain()
    assert FinishedMessage.objects.succeeded().count() == 20
    assert Mark.objects.count() == 40
    assert not caplog.records


def test_other_tasks_run_in_no_transaction(drain, alias):
    tasks.bodies["check"] = lambda: connections[alias].in_atomic_block
    tasks.play.enqueue("check")
    once.play.enqueue("check")
    drain()
    assert list(FinishedMessage.objects.order_by("id").values_list("result", flat=True)) == ["false", "true"]


def test_an_attempt_that_raised_has_written_nothing_and_another_follows(drain):
    once.stumble.enqueue(2)
    eventually(lambda: drain() and all_ended())
    ended = FinishedMessage.objects.get()
    assert (ended.outcome, ended.attempts, marks()) == ("succeeded", 3, ["tried"])


def test_an_attempt_that_took_too_long_has_written_nothing(drain):
    once.spin.enqueue()
    assert drain()
    ended = FinishedMessage.objects.get()
    assert (ended.outcome, marks()) == ("failed", [])
    assert "It took longer than 0:00:00.100000." in ended.errors


def test_a_task_that_schedules_itself_goes_on_without_a_poll(workers):
    once.count_down.schedule_at(timezone.now(), 5, key="countdown")
    one = workers(poll=60)
    eventually(all_ended)
    stop(one)
    assert marks() == ["5", "4", "3", "2", "1", "0"]
    assert (FinishedMessage.objects.superseded().count(), FinishedMessage.objects.succeeded().count()) == (5, 1)


def test_its_lease_is_renewed_while_it_runs(workers):
    pair = workers("--lease", "3"), workers("--lease", "3")
    for worker in pair:
        worker.ready()
    once.nap.enqueue("long", 5.0)
    eventually(all_ended)
    for worker in pair:
        stop(worker)
    assert FinishedMessage.objects.get().attempts == 1
    assert marks() == ["long began", "long ended"]


# While it runs: where others can write beside its transaction


@pytest.fixture
def playing():
    """Enqueue a task that writes, tells that it runs, and goes on when it may; `meanwhile` is called in between."""

    def start(drain, meanwhile):
        began, go_on = threading.Event(), threading.Event()

        def body(value):
            Mark.objects.create(name=value)
            began.set()
            assert go_on.wait(20)

        tasks.bodies["wait"] = body
        once.play.schedule_at(timezone.now(), "wait", "old", key="a")
        worker = threading.Thread(target=drain)
        worker.start()
        assert began.wait(20)
        meanwhile()
        go_on.set()
        worker.join()

    return start


@ROW_LOCKS
def test_replaced_while_it_runs_it_runs_once_more_without_a_poll(workers):
    once.nap.schedule_at(timezone.now(), "old", 1.0, key="a")
    one = workers(poll=60)
    eventually(lambda: Message.objects.leased().exists())
    once.nap.schedule_at(timezone.now(), "new", 0.0, key="a")
    eventually(all_ended)
    stop(one)
    assert marks() == ["old began", "old ended", "new began", "new ended"]


@ROW_LOCKS
def test_cancelled_while_it_runs_it_has_written_nothing_and_that_is_told(drain, playing):
    lost = []

    def hear(claimed, **_):
        lost.append(claimed.key)

    lease_lost.connect(hear)
    try:
        playing(drain, lambda: once.play.unschedule(key="a"))
    finally:
        lease_lost.disconnect(hear)
    assert lost == ["a"]
    assert (FinishedMessage.objects.get().outcome, marks()) == ("cancelled", [])


def cancel_it():
    once.play.unschedule(key="a")


def delete_it():
    Message.objects.all().delete()


@pytest.mark.parametrize("body", [cancel_it, delete_it])
def test_a_task_that_ends_its_own_message_is_told_to_raise_cancel(drain, body):
    tasks.bodies["end"] = body
    once.play.schedule_at(timezone.now(), "end", key="a")
    drain()
    row = Message.objects.get()
    assert ("delayedq.Cancel()" in row.errors, row.attempt) == (True, 1)


def test_a_step_that_cancels_its_own_message_is_told_to_raise_cancel(drain):
    tasks.bodies["end"] = lambda: current_message().step("end", tasks.play.unschedule, key="a")
    tasks.play.schedule_at(timezone.now(), "end", key="a")
    drain()
    assert "delayedq.Cancel()" in Message.objects.get().errors


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_connection_that_is_lost_while_it_runs_is_a_failed_attempt(drain, playing):
    def cut():
        together(terminate)
        assert marks() == []

    def terminate():
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state = 'idle in transaction'"
            )

    playing(drain, cut)
    row = Message.objects.get()
    assert (row.attempt, row.lease_token, marks()) == (1, None, [])
    assert "OperationalError" in row.errors


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_an_attempt_whose_connection_failed_before_it_began_is_not_charged(drain, connection, monkeypatch):
    """The worker's own connections are open; the thread of the task gets none, as on a server that has too many."""
    monkeypatch.setattr(executor, "CONNECTION_PAUSE", 3600.0)
    name, ran = connection.settings_dict["NAME"], []
    tasks.bodies["run"] = lambda: ran.append(1)
    once.play.schedule_at(timezone.now(), "run", key="a")

    def close(closed):
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {"false" if closed else "true"}')

    submit = Pool.submit
    monkeypatch.setattr(Pool, "submit", lambda pool, attempt: (close(True), submit(pool, attempt))[1])
    try:
        drain()
    finally:
        close(False)
    row = Message.objects.get()
    assert (row.attempt, row.lease_token, row.errors, ran) == (0, None, None, [])
    assert row.scheduled_at > timezone.now()
