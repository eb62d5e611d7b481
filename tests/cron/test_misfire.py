"""Ticks that were missed while no worker ran: which of them run later."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.cron.beat import beat
from delayedq.cron.definitions import read
from delayedq.cron.placing import AHEAD, RETURNS
from tests.cron.given import (
    DAILY,
    HOURLY,
    MINUTELY,
    NOW,
    at,
    beat_after_removal,
    beat_at,
    cancelled,
    disable,
    placed,
    ran,
    run_due,
)


def down(store, until, **schedules):
    """Workers beat at NOW, are gone, and come back: what do they run?"""
    beat_at(store, NOW, **schedules)
    beat_at(store, until, **schedules)
    return run_due(store, until)


def test_once_runs_the_latest_missed_tick_only(store):
    assert down(store, at(hours=5, minutes=20), hourly={**HOURLY, "misfire": "once"}) == [at(hours=5)]
    assert cancelled() == {at(): "It was missed (misfire: once)."}
    assert placed() == [at(hours=6)]


def test_once_is_the_default(store):
    assert down(store, at(hours=5), hourly=HOURLY) == [at(hours=5)]


def test_once_runs_a_single_missed_tick_however_late(store):
    assert down(store, at(hours=26), daily={**DAILY, "cron": "0 12 20 5 *"}) == [at(hours=2)]


def test_skip_runs_none_of_them(store):
    assert down(store, at(hours=5, minutes=20), hourly={**HOURLY, "misfire": "skip"}) == []
    assert cancelled() == {at(): "It was missed (misfire: skip)."}
    assert placed() == [at(hours=6)]


def test_skip_runs_what_is_only_a_little_late(store):
    skip = {**HOURLY, "misfire": "skip"}
    assert down(store, at(hours=5, seconds=50), hourly=skip) == [at(hours=5)]


def test_all_runs_each_with_its_nominal_time(store):
    assert down(store, at(hours=5, minutes=20), hourly={**HOURLY, "misfire": "all"}) == [at(hour) for hour in range(6)]


def test_all_of_very_many_come_back_in_portions_and_none_is_lost(store, monkeypatch):
    monkeypatch.setattr("delayedq.cron.placing.MOST", 100)
    schedule = {**MINUTELY, "misfire": "all"}
    beat_at(store, NOW, minutely=schedule)
    back = at(hours=10)
    for _ in range(10):
        beat_at(store, back, minutely=schedule)
        run_due(store, back)

    assert ran() == [at(minutes=minute) for minute in range(601)]


@pytest.mark.parametrize(
    ("misfire", "deadline", "expected"),
    [
        ("once", timedelta(minutes=20), [5]),
        ("once", timedelta(minutes=19), []),
        ("all", timedelta(hours=2, minutes=20), [3, 4, 5]),
        ("all", timedelta(hours=2, minutes=19), [4, 5]),
        ("skip", timedelta(hours=1, minutes=20), [4, 5]),
        ("all", timedelta.max, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_tick_starts_no_later_than_its_deadline(store, misfire, deadline, expected):
    schedule = {**HOURLY, "misfire": misfire, "starting_deadline": deadline}

    assert down(store, at(hours=5, minutes=20), hourly=schedule) == [at(hour) for hour in expected]


def test_ticks_that_wait_while_others_run_are_coalesced_too(store):
    beat_at(store, NOW, minutely=MINUTELY)
    beat_at(store, at(minutes=4, seconds=30), minutely=MINUTELY)

    assert run_due(store, at(minutes=4, seconds=30)) == [at(minutes=4)]
    assert set(cancelled()) == {at(minutes=minute) for minute in range(4)}


def test_a_short_pause_within_the_ticks_that_were_placed_misses_nothing_with_all(store):
    back = NOW + AHEAD - timedelta(minutes=1)
    expected = [at(minutes=minute) for minute in range(9)]
    assert down(store, back, minutely={**MINUTELY, "misfire": "all"}) == expected


def test_workers_that_are_up_but_busy_pass_over_what_is_too_late(store):
    definitions = {"daily": read("daily", {**DAILY, "starting_deadline": timedelta(minutes=2)})}
    beat(store, definitions, now=at(hours=1, minutes=55))
    beat(store, definitions, now=at(hours=2, minutes=1))
    assert placed() == [at(hours=2), at(hours=26)]
    beat(store, definitions, now=at(hours=2, minutes=3))

    assert placed() == [at(hours=26)]


def test_what_is_less_than_a_minute_late_is_not_missed_with_once(store):
    """A beat cancelled all but the latest tick of a schedule of every few seconds while its workers were busy."""
    often = {**MINUTELY, "cron": "* * * * * */10"}
    beat_at(store, NOW, own=often)
    beat_at(store, at(minutes=2, seconds=5), own=often)

    assert run_due(store, at(minutes=2, seconds=5)) == [at(minutes=1, seconds=10 * number) for number in range(1, 7)]


# Jitter


def test_a_tick_that_nobody_placed_and_that_jitter_puts_off_is_judged_by_when_it_is_due(store):
    schedule = {**MINUTELY, "misfire": "skip", "jitter": timedelta(hours=5)}
    definition = read("own", schedule)
    beat_at(store, NOW, own=schedule)
    back = at(minutes=40)
    beat_at(store, back, own=schedule)

    missed = [at(minutes=minute) for minute in range(10, 41)]
    in_time = [one for one in missed if definition.due_at(one) >= back - timedelta(minutes=1)]
    assert [one for one in placed() if at(minutes=10) <= one <= back] == in_time
    assert len(in_time) > 20


def test_ticks_that_jitter_puts_off_to_one_instant_are_both_judged(store, monkeypatch):
    monkeypatch.setattr("delayedq.cron.definitions.jittered", lambda *_: at(minutes=5))
    schedule = {**MINUTELY, "misfire": "skip", "jitter": timedelta(minutes=10)}
    beat_at(store, NOW, own=schedule)
    beat_at(store, at(minutes=7), own=schedule)

    assert set(cancelled()) >= {at(minutes=minute) for minute in range(6)}


# What never fires for the past


def test_a_new_schedule_starts_now(store):
    beat_at(store, at(minutes=30), hourly={**HOURLY, "misfire": "all"})

    assert placed() == [at(hours=1)]


def test_an_edited_schedule_starts_now(store):
    beat_at(store, NOW, hourly={**HOURLY, "misfire": "all"})
    run_due(store, at())
    beat_at(store, at(hours=5, minutes=20), hourly={**HOURLY, "misfire": "all", "cron": "10 * * * *"})

    assert run_due(store, at(hours=5, minutes=20)) == []
    assert placed() == [at(hours=6, minutes=10)]


def test_a_schedule_that_is_enabled_again_starts_now(store):
    schedule = {**HOURLY, "misfire": "all"}
    beat_at(store, NOW, hourly=schedule)
    beat_at(store, NOW, hourly={**schedule, "enabled": False})
    assert placed() == []
    beat_at(store, at(hours=5, minutes=20), hourly=schedule, new=DAILY)

    assert run_due(store, at(hours=5, minutes=20)) == []
    assert placed("hourly") == [at(hours=6)]


@pytest.mark.parametrize("beat_between", [beat_at, beat_after_removal], ids=["not retired", "retired"])
def test_a_schedule_that_comes_back_goes_on_from_where_it_was(store, beat_between):
    schedule = {**HOURLY, "misfire": "all"}
    beat_at(store, NOW, hourly=schedule)
    beat_between(store, NOW + timedelta(seconds=5))
    beat_at(store, at(hours=5, minutes=20), hourly=schedule)

    assert run_due(store, at(hours=5, minutes=20)) == [at(hour) for hour in range(6)]


def test_a_schedule_that_comes_back_after_a_long_time_starts_now(store):
    schedule = {**HOURLY, "misfire": "all"}
    beat_at(store, NOW, hourly=schedule)
    beat_after_removal(store, NOW + timedelta(seconds=5))
    back = NOW + RETURNS + timedelta(minutes=1)
    beat_at(store, back, hourly=schedule)

    assert run_due(store, back) == []


# Ticks of a definition that is not in effect any more


def test_ticks_of_an_old_definition_that_came_due_in_an_outage_are_judged(store):
    """30 of them ran 5 hours late after a deploy that changed an argument."""
    minutely = {**MINUTELY, "misfire": "skip"}
    beat_at(store, NOW, own=minutely)
    back = at(hours=5)
    beat_at(store, back, own={**minutely, "args": ["other"]})

    assert run_due(store, back) == []
    assert set(cancelled().values()) == {"It was missed (misfire: skip)."}


def test_of_the_ticks_of_an_old_definition_the_latest_runs_with_once(store):
    beat_at(store, NOW, own=MINUTELY)
    back = at(hours=5)
    beat_at(store, back, own={**MINUTELY, "args": ["other"]})

    assert run_due(store, back) == [at(minutes=9)]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda store, now: beat_at(store, now, own={**MINUTELY, "enabled": False}), "disabled in the settings."),
        (beat_after_removal, "not defined any more."),
        (lambda store, now: disable(store, "own", now), "disabled."),
    ],
    ids=["settings", "removed", "by hand"],
)
def test_ticks_that_were_missed_before_their_schedule_ended_are_cancelled_with_that_reason(store, end, reason):
    beat_at(store, NOW, own={**MINUTELY, "misfire": "all"})
    back = at(hours=5)
    end(store, back)

    assert run_due(store, back) == []
    assert len(cancelled()) == 10
    assert all(text.endswith(reason) for text in cancelled().values())


def test_changing_only_the_misfire_policy_is_no_new_definition(store):
    beat_at(store, NOW, hourly=HOURLY)
    beat_at(store, at(hours=2), hourly={**HOURLY, "misfire": "all"})

    assert run_due(store, at(hours=2)) == [at(), at(1), at(2)]
