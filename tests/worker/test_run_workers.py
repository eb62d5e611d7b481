"""`manage.py run_workers` as a process: what it is told, how it ends, and what its death costs."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from delayedq.models import FinishedMessage, Message, Worker
from tests.app import chores
from tests.app.models import Mark
from tests.worker.conftest import eventually, marked


def ended():
    return dict(FinishedMessage.objects.values_list("key", "outcome"))


def test_drain_runs_what_is_due_and_leaves_the_rest(workers):
    for number in range(40):
        chores.note.enqueue("due", str(number))
    chores.note.schedule_in(timedelta(hours=1), "future", key="future")
    code, output = workers("--drain").finish()
    assert code == 0, output
    assert sorted(int(mark.value) for mark in Mark.objects.all()) == list(range(40))
    assert Message.objects.get().key == "future"


def test_two_processes_run_each_message_once(workers):
    chores.note.enqueue_many((("many", str(number)), {}) for number in range(300))
    code, output = workers("--drain", "--processes", "2", "--threads", "3").finish()
    assert code == 0, output
    assert output.count(" started") == 2
    assert Counter(Mark.objects.values_list("value", flat=True)) == {str(number): 1 for number in range(300)}
    assert FinishedMessage.objects.succeeded().count() == 300


def test_only_the_named_queues_are_served(workers):
    chores.note.using(queue_name="a").enqueue("a")
    chores.note.using(queue_name="b").enqueue("b")
    chores.note.using(queue_name="c").enqueue("c")
    assert workers("--drain", "--queues", "a, b").finish()[0] == 0
    assert set(Mark.objects.values_list("name", flat=True)) == {"a", "b"}
    assert Message.objects.get().queue == "c"


def test_an_idle_worker_needs_no_poll_to_run_what_is_offered_or_becomes_due(workers):
    """It would poll once a minute, long after this test has given up."""
    workers(poll=60)
    chores.note.enqueue("first")
    eventually(lambda: marked("first"))
    chores.note.enqueue("second")
    chores.note.using(queue_name="another", priority=7).enqueue("right behind, in a new lane")
    when = timezone.now() + timedelta(seconds=1)
    chores.note.schedule_at(when, "third", key="third")
    third = eventually(lambda: FinishedMessage.objects.filter(key="third").first())
    assert third.started_at >= when
    eventually(lambda: marked("second") and marked("right behind, in a new lane"))


def test_what_becomes_due_again_by_the_workers_own_hand_needs_no_poll(workers):
    workers(poll=60)
    chores.snooze_thrice.schedule_at(timezone.now(), key="snoozed")
    chores.stumble.schedule_at(timezone.now(), 2, key="stumbled")
    chores.nap.schedule_at(timezone.now(), "old", 0.3, key="replaced")
    eventually(lambda: marked("old began"))
    chores.nap.schedule_at(timezone.now(), "new", 0.0, key="replaced")
    eventually(lambda: ended().keys() == {"snoozed", "stumbled", "replaced"} and marked("new ended"))


def test_sigterm_lets_running_tasks_finish_and_gives_the_rest_back_uncharged(workers):
    chores.nap.enqueue("long", 3.0)
    waiting = [int(chores.nap.enqueue(f"waiting {number}", 0.0).id) for number in range(3)]
    one = workers("--threads", "1")
    eventually(lambda: marked("long began"))
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    assert marked("long ended")
    left = Message.objects.filter(id__in=waiting)
    assert set(left.values_list("attempt", "lease_token")) == {(0, None)}
    assert FinishedMessage.objects.count() + left.count() == 4


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_the_end_of_the_terminal_is_a_stop_like_any_other(workers):
    """Shell and kernel send SIGHUP to all processes, one after the other: a task that runs finishes all the same."""
    chores.wait_for.enqueue("the end")
    one = workers("--threads", "1")
    eventually(lambda: marked("began to wait for the end"))
    one.send_all(signal.SIGHUP)
    for _ in range(5):
        time.sleep(0.1)  # signals of one kind that come together are one signal
        one.send(signal.SIGHUP)
    Mark.objects.create(name="the end")
    assert one.finish()[0] == 0
    assert FinishedMessage.objects.succeeded().count() == 1


@pytest.mark.slow
def test_a_task_that_outlives_the_shutdown_timeout_is_given_back_uncharged(workers):
    chores.nap.enqueue("endless", 60)
    one = workers("--shutdown-timeout", "2")
    eventually(lambda: marked("endless began"))
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    row = Message.objects.get()
    assert (row.attempt, row.lease_token, row.errors) == (0, None, None)


def test_the_second_signal_ends_it_at_once(workers):
    chores.nap.enqueue("endless", 60)
    one = workers("--shutdown-timeout", "60")
    eventually(lambda: marked("endless began"))
    # Signals of one kind that come together are one signal: send until the second was heard.
    eventually(lambda: one.send(signal.SIGTERM) or one.process.poll() is not None)
    assert one.finish(timeout=10)[0] == 128 + signal.SIGTERM


def test_ctrl_c_in_a_terminal_which_reaches_all_processes_stops_gracefully(workers):
    chores.nap.enqueue("long", 0.5)
    one = workers()
    eventually(lambda: marked("long began"))
    one.send_all(signal.SIGINT)
    code, output = one.finish()
    assert code == 0, output
    assert "Traceback" not in output
    assert marked("long ended")


def test_killed_mid_task_it_is_delivered_again_after_the_lease_and_not_before(workers):
    chores.nap.enqueue("killed", 60)
    first = workers("--lease", "2")
    eventually(lambda: marked("killed began"))
    first.send_all(signal.SIGKILL)
    first.finish()
    row = Message.objects.get()
    lease_ends = row.leased_until
    assert row.attempt == 1
    second = workers("--lease", "2")
    eventually(lambda: Mark.objects.filter(name="killed began").count() == 2)
    row = Message.objects.annotate(now=Now()).get()
    assert row.attempt == 2
    assert row.leased_until - timedelta(seconds=2) >= lease_ends
    second.send_all(signal.SIGKILL)


def test_nothing_is_lost_and_nothing_runs_twice_at_once_when_workers_are_killed_again_and_again(workers):
    chores.note.enqueue_many((("survivor", str(number)), {}) for number in range(400))
    for _ in range(3):
        one = workers("--lease", "1", "--processes", "2")
        before = FinishedMessage.objects.count()
        eventually(lambda before=before: FinishedMessage.objects.count() > before)
        one.send_all(signal.SIGKILL)
        one.finish()
        if not Message.objects.exists():
            break
    workers("--lease", "1")
    eventually(lambda: not Message.objects.exists())
    assert FinishedMessage.objects.succeeded().count() == 400
    assert set(Mark.objects.values_list("value", flat=True)) == {str(number) for number in range(400)}


@pytest.mark.slow
def test_what_a_dying_process_had_not_started_is_not_charged(workers):
    chores.die.enqueue()
    chores.nothing.enqueue_many(((number,), {}) for number in range(20))
    one = workers("--threads", "1", "--lease", "2")
    eventually(lambda: FinishedMessage.objects.filter(kind=chores.die.module_path).exists())
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    assert FinishedMessage.objects.succeeded().count() == 20
    assert set(FinishedMessage.objects.succeeded().values_list("attempts", flat=True)) == {1}


@pytest.mark.slow
def test_a_message_that_kills_its_process_is_a_dead_letter_after_max_attempts(workers):
    chores.die.schedule_at(timezone.now(), key="poison")
    one = workers("--lease", "1")
    eventually(lambda: ended().get("poison"))
    one.send(signal.SIGTERM)
    output = one.finish()[1]
    letter = FinishedMessage.objects.get()
    assert (letter.outcome, letter.attempts) == ("failed", 3)
    assert "WorkerVanished" in letter.errors
    assert Mark.objects.filter(name="died").count() == 3
    assert "another starts" in output


def freezes(worker, connection):
    """But not inside a transaction, whose locks would stay."""
    worker.send_all(signal.SIGSTOP)
    time.sleep(0.1)  # what it has asked of the database is done
    if locked := is_locked(connection):
        worker.send_all(signal.SIGCONT)
    return not locked


def is_locked(connection):
    """Is there a message, or on SQLite anything at all, that others can't write?"""
    if connection.vendor != "sqlite":
        with transaction.atomic(using=connection.alias):
            return len(Message.objects.select_for_update(skip_locked=True)) < Message.objects.count()
    with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as another:
        try:
            another.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


@pytest.mark.slow
def test_a_frozen_worker_that_thaws_after_its_lease_changes_nothing(workers, connection):
    chores.nap.schedule_at(timezone.now(), "frozen", 3.0, key="frozen")
    zombie = workers("--lease", "1")
    eventually(lambda: marked("frozen began"))
    eventually(lambda: freezes(zombie, connection))
    second = workers("--lease", "10")  # before it takes what has expired, it has renewed for a part of this
    eventually(lambda: ended().get("frozen"))
    finished_at = FinishedMessage.objects.get().finished_at
    zombie.send_all(signal.SIGCONT)
    zombie.send(signal.SIGTERM)
    code, output = zombie.finish()
    assert code == 0, output
    assert "was lost, and its result refused" in output
    letter = FinishedMessage.objects.get()
    assert (letter.outcome, letter.attempts, letter.finished_at) == ("succeeded", 2, finished_at)
    second.send(signal.SIGTERM)
    assert second.finish()[0] == 0


def test_a_task_is_told_that_its_message_was_cancelled(workers):
    chores.watch_lease.schedule_at(timezone.now(), "watcher", key="watched")
    one = workers("--lease", "1")
    eventually(lambda: marked("watcher began"))
    assert chores.watch_lease.unschedule(key="watched")
    eventually(lambda: marked("watcher lost"))
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    assert ended() == {"watched": "cancelled"}


@pytest.mark.slow
def test_a_lease_is_renewed_while_its_task_runs(workers):
    pair = workers("--lease", "3"), workers("--lease", "3")
    for worker in pair:
        worker.ready()
    chores.nap.schedule_at(timezone.now(), "long", 5.0, key="long")
    eventually(lambda: ended().get("long"))
    for worker in pair:
        worker.send(signal.SIGTERM)
        assert worker.finish()[0] == 0
    assert FinishedMessage.objects.get().attempts == 1
    assert Mark.objects.filter(name="long began").count() == 1


def test_a_process_is_replaced_after_max_tasks(workers):
    for number in range(6):
        chores.nap.enqueue(f"{number}", 0.0)
    one = workers("--max-tasks", "2", "--threads", "2")  # none waits for another, to be given back after a second
    eventually(lambda: FinishedMessage.objects.count() == 6)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
    assert len(set(Mark.objects.values_list("value", flat=True))) == 3


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("thread", ["delayedq-poller", "delayedq-silence"])
def test_a_process_is_replaced_when_a_thread_of_it_has_ended(workers, thread):
    one = workers("--processes", "1", poll=0.2)
    one.ready()
    chores.nap.enqueue("one that runs meanwhile", 1.0)
    eventually(lambda: marked("one that runs meanwhile began"))
    chores.end_thread.enqueue(thread)
    eventually(lambda: FinishedMessage.objects.filter(kind=chores.end_thread.module_path).exists())
    pids = set()

    def another():
        pids.update(Worker.objects.values_list("pid", flat=True))
        return len(pids) == 2

    eventually(another)
    chores.note.enqueue("after")
    eventually(lambda: marked("after"))
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert f"is replaced: its thread {thread} has ended." in output
    assert marked("one that runs meanwhile ended")


def test_workers_stop_when_their_supervisor_is_gone(workers):
    chores.nap.enqueue("long", 0.5)
    one = workers()
    eventually(lambda: marked("long began"))
    one.process.kill()
    one.process.communicate(timeout=20)  # its children hold the pipe until they have ended
    assert marked("long ended")
    assert FinishedMessage.objects.get().outcome == "succeeded"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--processes", "0"], "'0' is not a whole number over 0"),
        (["--threads", "two"], "'two' is not a whole number over 0"),
        (["--lease", "0"], "'0' is not a number of seconds over 0"),
        (["--lease", "-1"], "'-1' is not a number of seconds over 0"),
        (["--lease", "nan"], "'nan' is not a number of seconds over 0"),
        (["--shutdown-timeout", "soon"], "'soon' is not a number of seconds over 0"),
        (["--queues", " , "], "name at least one queue"),
        (["--max-tasks", "1.5"], "'1.5' is not a whole number over 0"),
    ],
)
@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_wrong_flag_is_refused(workers, flags, complaint):
    code, output = workers(*flags).finish()
    assert code == 2
    assert complaint in output
