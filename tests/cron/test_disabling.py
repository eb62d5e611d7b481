"""A schedule that an operator has disabled: nothing of it is placed until it is enabled again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.cron import placing
from delayedq.cron.beat import beat
from delayedq.cron.definitions import read
from delayedq.models import CronSchedule, CronTick
from tests.cron.given import (
    HOURLY,
    MINUTELY,
    NOW,
    at,
    beat_at,
    cancelled,
    disable,
    enable,
    placed,
    run_due,
    tombstones,
)
from tests.store.given import together


def test_its_future_ticks_are_taken_back(store):
    beat_at(store, hourly=HOURLY, other=HOURLY)
    disable(store, "hourly", NOW)

    assert (placed("hourly"), placed("other")) == ([], [at()])
    assert cancelled() == {at(): "Its schedule was disabled."}
    assert tombstones() == [at()]


def test_beats_place_nothing_of_it(store):
    disable(store, "hourly", NOW)
    for hours in range(3):
        beat_at(store, at(hours), hourly=HOURLY, other=HOURLY)

    assert placed("hourly") == []
    assert placed("other")


def test_what_has_just_become_due_still_runs_and_what_is_late_by_more_than_a_minute_does_not(store):
    beat_at(store, minutely=MINUTELY)
    disable(store, "minutely", at(minutes=2, seconds=30))

    assert run_due(store, at(minutes=5)) == [at(minutes=2)]
    assert set(cancelled()) == {at(minutes=minute) for minute in range(10)} - {at(minutes=2)}


def test_enabled_again_it_starts_from_then(store):
    beat_at(store, hourly=HOURLY)
    disable(store, "hourly", NOW)
    enable(store, read("hourly", {**HOURLY, "misfire": "all"}), at(2, 30))

    assert placed() == [at(3)]
    beat_at(store, at(2, 31), hourly={**HOURLY, "misfire": "all"})
    assert placed() == [at(3)]


def test_enabled_again_at_once_its_next_tick_is_placed_anew(store):
    beat_at(store, hourly=HOURLY)
    disable(store, "hourly", NOW)
    enable(store, read("hourly", HOURLY), NOW + timedelta(seconds=1))

    assert placed() == [at()]


def test_what_the_settings_disable_stays_so(store):
    disable(store, "hourly", NOW)
    enable(store, read("hourly", {**HOURLY, "enabled": False}), NOW)

    assert CronSchedule.objects.get().disabled_at is None
    assert placed() == []


def test_disabled_twice_it_is_disabled_since_the_first_time(store):
    disable(store, "hourly", NOW)
    disable(store, "hourly", at(1))

    assert CronSchedule.objects.get().disabled_at == NOW


def test_a_beat_that_began_before_places_nothing_after(store, monkeypatch):
    """It has read the known schedules, and then waits for the lock of the schedule's row."""
    lock_each = placing.lock_each

    def late(store, ids, **options):
        monkeypatch.setattr(placing, "lock_each", lock_each)
        disable(store, "hourly", NOW)
        return lock_each(store, ids, **options)

    monkeypatch.setattr(placing, "lock_each", late)
    beat_at(store, hourly=HOURLY)

    assert placed() == []
    assert not CronTick.objects.exists()


@pytest.mark.parametrize("_again", range(3))
def test_two_who_disable_and_a_beat_at_once_leave_no_tick(store, _again):
    beat_at(store, hourly=HOURLY)
    definition = read("hourly", HOURLY)
    together(
        lambda: disable(store, "hourly", NOW),
        lambda: disable(store, "hourly", NOW),
        lambda: beat(store, {"hourly": definition}, now=NOW),
    )

    assert placed() == []
