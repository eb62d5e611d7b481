"""`manage.py delayedq tail`: what starts and ends, each once, until Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test.utils import CaptureQueriesContext

from delayedq.models import FinishedMessage, Worker
from delayedq.operations.browsing import EndedSelection, Selection
from delayedq.operations.following import LATE, Following
from tests.admin.given import offer, run
from tests.management.given_messages import dead
from tests.store.given import message, settle, succeed

ROOT = Path(__file__).parents[2]


def ended(store, key, queue="mail", **fields):
    """A message that has just succeeded; returns its id."""
    store.offer(message(key, queue=queue, scheduled_at=None, **fields))
    claimed = run(store, queue)
    settle(store, succeed(claimed, started=0.0, finished=0.0), now=None)
    return claimed.id


def follow(store, **asked):
    now = store.now()
    return Following(store, EndedSelection(**asked), Selection(as_of=now))


# What a look finds


def test_each_end_is_found_once_and_none_from_before(store):
    ended(store, "before")
    following = follow(store)
    assert following.ends() == []
    first, second = ended(store, "a"), dead(store, "b")
    assert [(one.pk, one.outcome) for one in following.ends()] == [(first, "succeeded"), (second, "failed")]
    assert following.ends() == []
    third = ended(store, "c")
    assert [one.pk for one in following.ends()] == [third]


def test_an_end_that_is_stored_late_is_found(store):
    """It happened before one that was seen already."""
    following = follow(store)
    ended(store, "a")
    assert len(following.ends()) == 1
    late = ended(store, "late")
    moment = FinishedMessage.objects.get(key="a").finished_at - LATE / 2
    FinishedMessage.objects.filter(pk=late).update(finished_at=moment)
    assert [one.pk for one in following.ends()] == [late]
    assert following.ends() == []


def test_one_that_is_retried_and_ends_again_is_found_again(store):
    following = follow(store)
    id_ = dead(store, "a")
    assert [one.pk for one in following.ends()] == [id_]
    FinishedMessage.objects.filter(pk=id_).update(finished_at=store.now())
    assert [one.pk for one in following.ends()] == [id_]


def test_only_what_is_asked_for_is_found(store):
    following, failed = follow(store, queue="slow"), follow(store, outcome="failed")
    ended(store, "a")
    slow, dead_one = ended(store, "b", "slow"), dead(store, "c")
    assert [one.pk for one in following.ends()] == [slow]
    assert [one.pk for one in failed.ends()] == [dead_one]


def test_the_last_ends_come_first_the_last_one_last(store):
    every = [ended(store, key) for key in "abc"]
    assert [one.pk for one in follow(store).last(2)] == every[1:]


def test_a_look_asks_only_for_what_is_new_however_long_the_history_is(store, connection):
    """In one keyset scan, which has a bound of time."""
    ended(store, "a")
    FinishedMessage.objects.update(finished_at=store.now() - timedelta(days=1))
    following = follow(store)
    with CaptureQueriesContext(connection) as asked:
        assert following.ends() == []
        assert following.starts() == []
    history = [one["sql"] for one in asked if "delayedq_finishedmessage" in one["sql"]]
    assert len(history) == 1
    assert "finished_at >= " in history[0]
    assert len(asked) <= 4


def test_what_workers_report_to_run_is_found_once_for_each_attempt(store):
    following = follow(store)
    offer(store, "a")
    claimed, now = run(store), store.now()
    fields = {"host": "h", "pid": 1, "threads": 1, "lease": 60.0, "started_at": now, "seen_at": now}
    worker = Worker.objects.create(name="worker-1", running=json.dumps([claimed.id]), **fields)
    assert [(one.pk, one.leased_by) for one in following.starts()] == [(claimed.id, "worker-1")]
    assert following.starts() == []
    worker.running = "[]"
    worker.save()
    assert following.starts() == []
    worker.running = json.dumps([claimed.id])
    worker.save()
    assert [one.pk for one in following.starts()] == [claimed.id]


# The command


@contextmanager
def tail(environment, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "delayedq", "tail", "--every", "0.05", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_it_follows_until_it_is_interrupted(store, environment):
    ended(store, "before", payload='{"args":["secret"]}')
    with tail(environment, "--json") as process:
        assert json.loads(process.stdout.readline())["key"] == "before"
        id_ = ended(store, "a")
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["id"], event["key"], event["worker"]) == ("succeeded", id_, "a", "worker-1")
        dead(store, "b")
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["error"]) == ("failed", "app.Full: Seat 7 is taken")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_its_lines_are_read_by_people(store, environment):
    dead(store, "before")
    with tail(environment, "--state", "failed") as process:
        assert "tests.remind before" in process.stdout.readline()
        ended(store, "other"), dead(store, "b")
        line = process.stdout.readline()
        assert "failed" in line
        assert "tests.remind b, " in line
        assert line.endswith(": app.Full: Seat 7 is taken\n")


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_filter_that_is_not_valid_follows_nothing(store):
    for wrong in (("--state", "due"), ("--every", "0"), ("--last", "-1"), ("--last", "51"), ("--group", "x")):
        with pytest.raises(CommandError):
            call_command("delayedq", "tail", *wrong)


def test_an_interruption_that_nobody_sees_ends_it(store, monkeypatch):
    """As where the signal arrives in a function that SQLite calls: it becomes an error of the database."""
    looks = []

    def ends(_following):
        looks.append(None)
        assert len(looks) == 1
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise DatabaseError("user-defined function raised exception")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Following, "ends", ends)
    said = StringIO()
    call_command("delayedq", "tail", "--every", "0.01", stderr=said)
    assert said.getvalue() == ""
    assert signal.getsignal(signal.SIGINT) is before
