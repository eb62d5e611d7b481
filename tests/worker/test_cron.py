"""Cron in real workers: any number of them, also when they are killed at the instant of a tick."""

from __future__ import annotations

import json
import logging
import random
import signal
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.db import OperationalError, connections

from delayedq.cron.beat import Beats, beat
from delayedq.cron.definitions import read
from delayedq.models import CronTick, FinishedMessage, Message
from delayedq.worker.cron_beat import CronBeat
from delayedq.worker.loop import Loop
from delayedq.worker.outage import Outage
from tests.app.chores import note
from tests.app.models import Mark
from tests.cron.given import nominal, placed
from tests.operations.test_health import READ_ONLY
from tests.worker.conftest import eventually

pytestmark = pytest.mark.slow

TASK = "tests.app.chores.note_tick"
EVERY_SECOND = {"task": TASK, "cron": "* * * * * *", "timezone": "UTC", "misfire": "all"}
MINUTELY = {"task": TASK, "cron": "* * * * *", "timezone": "UTC"}


def cron(**schedules):
    return json.dumps(schedules)


def marks():
    return sorted(datetime.fromisoformat(name) for name in Mark.objects.values_list("name", flat=True))


def test_a_worker_runs_the_ticks_of_the_settings_and_a_task_reads_its_nominal_time(workers, alias):
    one = workers(CRON=cron(tick=EVERY_SECOND))
    eventually(lambda: Mark.objects.count() >= 3)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0

    times = marks()  # only now: two that run side by side end in any order
    assert times[1] - times[0] == times[2] - times[1] == timedelta(seconds=1)
    assert all(time.microsecond == 0 for time in times)
    assert set(Mark.objects.values_list("value", flat=True)) == {"tick"}


def test_ticks_run_once_each_while_workers_are_killed_on_them(workers, alias):
    flags = ("--processes", "2", "--lease", "1")
    variables = {"CRON": cron(tick=EVERY_SECOND), "poll": 0.2}
    fleet = [workers(*flags, **variables) for _ in range(2)]
    for count in (2, 4, 6):
        eventually(lambda wanted=count: FinishedMessage.objects.count() >= wanted)
        victim = fleet.pop(random.randrange(2))
        victim.send_all(signal.SIGKILL)
        victim.process.communicate(timeout=60)
        fleet.append(workers(*flags, **variables))
    eventually(lambda: FinishedMessage.objects.count() >= 9)
    for one in fleet:
        one.ready()
        one.send(signal.SIGTERM)
    for one in fleet:
        assert one.finish()[0] == 0

    ended = [nominal(message) for message in FinishedMessage.objects.succeeded()]
    assert len(ended) == len(set(ended))
    times = sorted([*ended, *placed()])
    assert times == [times[0] + timedelta(seconds=second) for second in range(len(times))]
    assert set(ended) <= set(marks())


def test_missed_ticks_are_judged_before_anything_is_claimed(workers, alias, store):
    now = store.now()
    missed = [now.replace(second=0, microsecond=0) - timedelta(minutes=back) for back in range(50, 30, -1)]
    minutes = ",".join(str(time.minute) for time in missed)
    own = {**MINUTELY, "cron": f"{minutes} * * * *"}  # and none of them while this test runs
    beat(store, {"own": read("own", own)}, now=now - timedelta(minutes=55))
    waiting = Message.objects.count()
    assert 1 < waiting < len(missed)
    fleet = [workers("--processes", "2", "--drain", CRON=cron(own=own)) for _ in range(2)]
    for one in fleet:
        assert one.finish()[0] == 0

    assert marks() == [missed[-1]]
    assert FinishedMessage.objects.cancelled().count() == waiting


def test_without_cron_a_worker_places_nothing(workers, alias):
    code, _ = workers("--drain", "--no-cron", CRON=cron(tick=EVERY_SECOND)).finish()

    assert code == 0
    assert CronTick.objects.count() == 0


def test_a_worker_leaves_the_ticks_of_others_alone(workers, alias, store):
    beat(store, {"own": read("own", {**MINUTELY, "cron": "0 0 1 1 *"})})
    assert workers("--drain").finish()[0] == 0

    assert Message.objects.count() == 1


def test_a_wrong_schedule_keeps_a_worker_from_starting(workers, alias):
    code, output = workers("--drain", CRON=cron(bad={**MINUTELY, "timezone": "Europe/Nowhere"})).finish()

    assert code != 0
    assert "DELAYEDQ['CRON']['bad']['timezone']" in output


def test_a_beat_that_loses_the_database_tries_again(store, caplog, monkeypatch):
    monkeypatch.setattr("delayedq.worker.cron_beat.RETRY", 0.01)
    one = CronBeat(store, {"own": read("own", MINUTELY)}, Outage("test"))
    failing = iter([OperationalError("the connection was lost")])
    now = type(store).now

    def lost_once(self):
        for error in failing:
            raise error
        return now(self)

    monkeypatch.setattr(type(store), "now", lost_once)
    with caplog.at_level(logging.WARNING, "delayedq"):
        one.begin(wait=True)
        eventually(Message.objects.exists)
    one.stop()
    assert "the connection was lost" in caplog.text


def test_a_beat_that_may_not_write_tries_again_soon_and_is_one_line(store, caplog, monkeypatch):
    """The address leads to a standby for a while, as after a failover."""
    monkeypatch.setattr("delayedq.worker.cron_beat.RETRY", 0.01)
    one = CronBeat(store, {"own": read("own", MINUTELY)}, Outage("test"))
    connection = connections[store.alias]
    with connection.cursor() as cursor:
        cursor.execute(READ_ONLY[connection.vendor][0])
    with caplog.at_level(logging.WARNING, "delayedq"):
        one.begin(wait=True)
        eventually(Message.objects.exists)
    one.stop()
    assert "the database has not answered" in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_beat_that_fails_is_told_and_the_next_one_tries_again(store, caplog, monkeypatch, settings):
    """The thread ended then, and the worker went on without cron. A short grace period has more beats."""
    settings.DELAYEDQ = {"CRON_GRACE": timedelta(seconds=0.04)}
    one = CronBeat(store, {"own": read("own", MINUTELY)}, Outage("test"))
    failing = iter([ValueError("a bug")])
    beat_of = Beats.beat

    def fails_once(self, **options):
        for error in failing:
            raise error
        beat_of(self, **options)

    monkeypatch.setattr(Beats, "beat", fails_once)
    one.begin(wait=True)
    eventually(Message.objects.exists)
    one.stop()
    assert "A beat of cron failed; the next one tries again." in caplog.text


def test_a_loop_that_may_run_no_cron_has_no_beat_beside_it(store, options, monkeypatch):
    started = []

    def start(self):
        started.append(self)

    monkeypatch.setattr(CronBeat, "start", start)
    Loop(store, replace(options, cron=False), "test").run()

    assert started == []


def test_the_first_claim_does_not_wait_for_the_first_beat(store, options, monkeypatch):
    """With thousands of schedules a beat takes seconds; here it lasts until a task has run."""
    monkeypatch.setattr(Beats, "beat", lambda self, **_: eventually(Mark.objects.exists))
    note.enqueue("first")
    Loop(store, replace(options, drain=False, max_tasks=1), "test").run()

    assert Mark.objects.get().name == "first"


def test_a_tick_is_skipped_while_another_one_runs(workers, alias):
    """A task of 2.5 s, every second, in four threads of two processes."""
    nap = {**EVERY_SECOND, "task": "tests.app.chores.nap", "args": ["nap", 2.5], "overlap": "skip"}
    one = workers("--processes", "2", CRON=cron(nap=nap), poll=0.2)
    eventually(lambda: Mark.objects.filter(name="nap ended").count() >= 2)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0

    steps = list(Mark.objects.order_by("id").values_list("name", flat=True))
    assert steps == ["nap began", "nap ended"] * (len(steps) // 2)
    assert FinishedMessage.objects.cancelled().exists()
