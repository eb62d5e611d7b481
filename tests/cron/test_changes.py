"""A definition that is changed or removed takes back its own future ticks, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.models import FinishedMessage, Message
from tests.cron.given import (
    DAILY,
    HOURLY,
    MINUTELY,
    NOW,
    at,
    beat_after_removal,
    beat_at,
    cancelled,
    claim_due,
    placed,
    ran,
    run_due,
)
from tests.store.given import retry, settle, succeed

CHANGED = {**MINUTELY, "args": ["other"]}
CHANGES = pytest.mark.parametrize(
    ("beat_after", "after"),
    [
        (beat_at, {"own": CHANGED}),
        (beat_at, {"own": {**MINUTELY, "enabled": False}}),
        (beat_after_removal, {}),
    ],
    ids=["changed", "disabled", "removed"],
)


def test_a_changed_definition_replaces_its_future_ticks(store):
    beat_at(store, own=MINUTELY)
    before = placed()
    beat_at(store, own=CHANGED)

    assert placed() == before
    assert all("other" in message.payload for message in Message.objects.all())
    assert set(cancelled()) == set(before)
    assert set(cancelled().values()) == {"Its schedule has changed."}


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "*/5 * * * *"},
        {"timezone": "Asia/Kathmandu"},
        {"priority": 3},
        {"queue_name": "mail"},
        {"kwargs": {"value": "x"}},
        {"args": ["y"]},
        {"task": "tests.app.tasks.echo"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_makes_another_message_is_a_change(store, change):
    beat_at(store, own=HOURLY)
    beat_at(store, own={**HOURLY, **change})

    assert cancelled() == {at(): "Its schedule has changed."}


def test_a_period_instead_of_an_expression_is_a_change(store):
    beat_at(store, own=HOURLY)
    beat_at(store, own={"task": HOURLY["task"], "args": HOURLY["args"], "every": timedelta(hours=1)})

    assert cancelled() == {at(): "Its schedule has changed."}
    assert placed() == [at()]


def test_a_disabled_schedule_places_nothing_and_says_so(store):
    beat_at(store, own=MINUTELY)
    beat_at(store, own={**MINUTELY, "enabled": False})

    assert placed() == []
    assert set(cancelled().values()) == {"Its schedule was disabled in the settings."}


@CHANGES
def test_other_schedules_are_not_touched(store, beat_after, after):
    others = {"own_": MINUTELY, "OWN": MINUTELY, "own%": MINUTELY, "ow": MINUTELY, "own/x": MINUTELY}
    beat_at(store, own=MINUTELY, **others)
    before = {name: placed(name) for name in others}
    beat_after(store, NOW + timedelta(seconds=5), **after, **others)

    assert {name: placed(name) for name in others} == before


@CHANGES
def test_messages_that_are_no_ticks_are_not_touched(store, beat_after, after):
    from tests.app.tasks import mark

    mark.schedule_at(at(hours=1), "mine", key="own/0123/20260520-110000.000000000")
    beat_at(store, own=MINUTELY)
    beat_after(store, NOW + timedelta(seconds=5), **after)

    assert Message.objects.filter(key__startswith="own/0123/").count() == 1


@CHANGES
def test_a_tick_that_is_due_or_runs_or_waits_for_a_retry_goes_on(store, beat_after, after):
    beat_at(store, own=MINUTELY)
    (failed,) = claim_due(store, at())
    settle(store, retry(failed, delay=3600.0), now=at())
    (running,) = claim_due(store, at(minutes=1))
    now = at(minutes=2, seconds=10)
    beat_after(store, now, **after)

    kept = set(Message.objects.filter(payload__contains="tick").values_list("scheduled_at", flat=True))
    assert kept == {at(hours=1), at(minutes=1), at(minutes=2)}
    settle(store, succeed(running), now=now)
    assert FinishedMessage.objects.succeeded().count() == 1


def test_an_expired_tick_awaits_its_redelivery(store):
    beat_at(store, own=HOURLY)
    claim_due(store, at())
    back = at(minutes=30)
    beat_at(store, back)

    assert run_due(store, back) == [at()]


def test_workers_with_old_and_new_settings_side_by_side_run_each_tick_once(store):
    for seconds in range(0, 600, 10):
        now = NOW + timedelta(seconds=seconds)
        beat_at(store, now, own=MINUTELY if seconds % 20 else CHANGED)
        run_due(store, now)

    assert ran() == [at(minutes=minute) for minute in range(10)]


def test_a_worker_without_the_schedule_beside_one_that_has_it(store):
    for seconds in range(0, 600, 10):
        now = NOW + timedelta(seconds=seconds)
        beat_at(store, now, **({"own": MINUTELY} if seconds % 20 else {}))
        run_due(store, now)

    times = ran()
    assert len(times) == len(set(times))


def test_a_changed_time_takes_the_old_one_back(store):
    beat_at(store, own=DAILY)
    beat_at(store, own={**DAILY, "cron": "0 15 * * *"})

    assert placed() == [at(hours=5)]
    assert set(cancelled()) == {at(hours=2)}
