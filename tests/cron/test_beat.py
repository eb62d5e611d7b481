"""A beat places ticks ahead, each once, with any number of workers and clocks that differ."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from itertools import count

import pytest
from django.db import OperationalError
from django.utils import timezone

from delayedq.conf import get_settings
from delayedq.cron import placing
from delayedq.cron.beat import PRESENCE, Beats, beat
from delayedq.cron.definitions import read
from delayedq.cron.placing import AHEAD, MOST
from delayedq.models import CronSchedule, CronSettings, CronTick, CronTickQuerySet, Message
from tests.cron.given import (
    DAILY,
    HOURLY,
    MINUTELY,
    NOW,
    at,
    beat_at,
    claim_due,
    nominal,
    placed,
    ran,
    run_due,
    tombstones,
)
from tests.store.given import together

EVERY_MINUTE_AHEAD = [at(minutes=minute) for minute in range(10)]


def test_at_least_the_next_tick_is_placed(store):
    beat_at(store, daily=DAILY)

    assert placed() == [at(hours=2)]
    message = Message.objects.get()
    assert (message.scheduled_at, message.scheduled_at_initially) == (at(hours=2), at(hours=2))
    assert (message.kind, message.queue, message.payload) == ("tests.app.tasks.mark", "default", message.payload)


def test_all_ticks_of_the_next_minutes_are_placed(store):
    beat_at(store, minutely=MINUTELY)

    assert placed() == EVERY_MINUTE_AHEAD
    assert tombstones() == EVERY_MINUTE_AHEAD
    assert at(minutes=9) <= NOW + AHEAD < at(minutes=10)


def test_a_key_names_the_schedule_its_definition_and_the_instant(store):
    beat_at(store, daily=DAILY)

    definition = read("daily", DAILY)
    assert Message.objects.get().key == f"daily/{definition.config_hash}/20260520-120000.000000000"


def test_a_tick_tells_its_schedule_and_nominal_time_beside_the_metadata_of_its_task(store):
    beat_at(store, send={**DAILY, "task": "tests.app.tasks.send", "args": ["ann"]})

    assert json.loads(Message.objects.get().metadata) == {
        "team": "gate",
        "cron": {
            "schedule": "send",
            "nominal_at": "2026-05-20T12:00:00+00:00",
            "misfire": "once",
            "expires_at": "2026-05-21T12:00:00+00:00",
        },
    }


def test_the_queue_and_priority_of_a_schedule_are_those_of_its_messages(store):
    beat_at(store, daily={**DAILY, "queue_name": "mail", "priority": 7, "kwargs": {"value": "x"}})

    message = Message.objects.get()
    assert (message.queue, message.priority, message.max_attempts) == ("mail", 7, 8)


def test_beats_add_what_comes_into_reach_and_nothing_twice(store):
    for seconds in range(0, 600, 45):
        beat_at(store, NOW + timedelta(seconds=seconds), minutely={**MINUTELY, "misfire": "all"})

    assert placed() == [at(minutes=minute) for minute in range(20)]


def test_a_tick_that_has_run_does_not_come_back(store):
    beat_at(store, hourly=HOURLY)
    assert run_due(store, at()) == [at()]

    for now in (NOW, at(), at(minutes=-5), at(minutes=30)):
        beat_at(store, now, hourly=HOURLY)
    assert run_due(store, at(minutes=30)) == []
    assert placed() == [at(hours=1)]


def test_workers_with_clocks_minutes_apart_run_each_tick_once(store):
    for seconds in range(0, 600, 20):
        now = NOW + timedelta(seconds=seconds)
        for skew in (0, -120, 120):
            beat_at(store, now + timedelta(seconds=skew), minutely={**MINUTELY, "misfire": "all"})
            run_due(store, now)

    assert ran() == [at(minutes=minute) for minute in range(10)]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_the_clock_of_a_workers_host_says_nothing(store, monkeypatch):
    now = store.now()
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(hours=1))
    beat(store, {"dense": read("dense", {**HOURLY, "cron": "* * * * * *"})})

    assert now < placed()[0] < now + timedelta(seconds=30)


def test_workers_that_start_together_place_each_tick_once(store):
    definitions = {name: read(name, MINUTELY) for name in ("one", "two")}
    together(*[partial(beat, store, definitions, now=NOW) for _ in range(6)])

    assert placed("one") == placed("two") == EVERY_MINUTE_AHEAD
    assert CronSchedule.objects.count() == 2


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_whatever_the_server_undoes_is_tried_again(store, connection):
    """Of a beat that installs a schedule and expires a set: each statement that takes locks, in turn."""
    lately, long_ago = NOW - get_settings().CRON_GRACE / 10, NOW - timedelta(days=9)
    for undone in count(start=1):
        CronSettings.objects.create(digest="unused", content="{}", seen_at=long_ago)
        CronSettings.objects.create(digest=PRESENCE, content=long_ago.isoformat(), seen_at=lately)
        server = Undoing(undone)
        with connection.execute_wrapper(server):
            beat_at(store, minutely=MINUTELY)

        assert placed() == EVERY_MINUTE_AHEAD
        assert not CronSettings.objects.filter(digest="unused").exists()
        if server.left:
            break  # there are no more statements
        for model in (Message, CronTick, CronSchedule, CronSettings):
            model.objects.all().delete()
    assert undone > 10


class Undoing:
    """The server undoes the transaction of the n-th statement that takes locks, to end a deadlock."""

    def __init__(self, left):
        self.left = left

    def __call__(self, execute, sql, params, many, context):
        if self.left and (not sql.startswith("SELECT") or "FOR UPDATE" in sql):
            self.left -= 1
            if not self.left:
                raise OperationalError(1213, "as if")
        return execute(sql, params, many, context)


def test_two_schedules_may_tick_at_the_same_time(store):
    beat_at(store, one=HOURLY, two=HOURLY)

    assert placed() == [at(), at()]


def test_tombstone_and_message_commit_together(store, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("The process dies here.")

    with monkeypatch.context() as patched:
        patched.setattr(CronTickQuerySet, "bulk_create", broken)
        beat_at(store, hourly=HOURLY)
    assert (placed(), tombstones()) == ([], [])

    beat_at(store, hourly=HOURLY)
    assert (placed(), tombstones()) == ([at()], [at()])


def test_one_schedule_that_fails_does_not_stop_the_others(store, caplog):
    definitions = {name: read(name, HOURLY) for name in ("bad", "good")}
    object.__setattr__(definitions["bad"], "schedule", None)
    beat(store, definitions, now=NOW)

    assert placed("good") == [at()]
    assert "'bad' could not be placed" in caplog.text


def test_a_beat_leaves_alone_what_another_worker_has_just_seen_to(store, connection, django_assert_num_queries):
    definitions = {"minutely": read("minutely", MINUTELY), "daily": read("daily", DAILY)}
    one, other = Beats(store, definitions), Beats(store, definitions)
    for beats in (one, other, one, other):
        beats.beat(NOW)

    for beats in (one, other):
        with django_assert_num_queries(3, connection=connection):
            beats.beat(NOW + timedelta(seconds=20))


def test_a_dense_schedule_is_placed_in_portions(store):
    every_second = {**HOURLY, "cron": "* * * * * *"}
    beat_at(store, dense=every_second)
    first = placed()
    assert (first[0], first[-1], len(first)) == (NOW + timedelta(seconds=1), NOW + AHEAD, 600)

    beat_at(store, NOW + timedelta(seconds=60), dense=every_second)
    assert placed()[-1] == NOW + AHEAD + timedelta(seconds=60)


# Tombstones


def test_old_tombstones_go_and_their_ticks_do_not_come_back(store, monkeypatch):
    monkeypatch.setattr(placing, "KEPT", 5)
    monkeypatch.setattr(placing, "PRUNE_EVERY", 1)
    for minute in range(30):
        beat_at(store, at(minutes=minute, seconds=30), minutely=MINUTELY)
        run_due(store, at(minutes=minute, seconds=30))
    past = [tick for tick in tombstones() if tick <= at(minutes=29)]
    assert past == [at(minutes=minute) for minute in range(25, 30)]

    before = ran()
    for minute in (0, 10, 20, 29):  # clocks that are half an hour behind
        beat_at(store, at(minutes=minute), minutely=MINUTELY)
        run_due(store, at(minutes=29, seconds=30))
    assert ran() == before
    assert len(before) == len(set(before))


def test_a_tick_that_somebody_cancelled_stays_cancelled(store):
    beat_at(store, hourly=HOURLY)
    message = Message.objects.get()
    store.unschedule(message.kind, message.key)

    beat_at(store, NOW + timedelta(seconds=10), hourly=HOURLY)
    assert placed() == []


def test_a_schedule_that_never_ticks_again_is_left_alone(store):
    definition = read("minutely", MINUTELY)

    class Over:
        def next_after(self, instant):
            return None

    object.__setattr__(definition, "schedule", Over())
    beat(store, {"minutely": definition}, now=NOW)
    assert placed() == []


def test_a_claimed_tick_carries_its_nominal_time(store):
    beat_at(store, hourly=HOURLY)

    (claimed,) = claim_due(store, at(minutes=3))
    assert nominal(claimed) == claimed.scheduled_at_initially == at()


def test_one_beat_places_a_limited_number_of_ticks(store, monkeypatch):
    monkeypatch.setattr("delayedq.cron.placing.MOST", 3)
    assert MOST > 3
    beat_at(store, minutely=MINUTELY)
    assert placed() == EVERY_MINUTE_AHEAD[:3]
    for _ in range(3):
        beat_at(store, minutely=MINUTELY)
    assert placed() == EVERY_MINUTE_AHEAD
    assert CronTick.objects.count() == 10
