"""`max_runs`: how many ticks of a schedule are placed in all, whatever happens to it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.models import CronSchedule
from tests.cron.given import DAILY, HOURLY, MINUTELY, NOW, at, beat_at, cancelled, claim_due, placed, ran, run_due
from tests.cron.test_starting import start

THRICE = {**MINUTELY, "max_runs": 3}


def minutes(*numbers):
    return [at(minutes=number) for number in numbers]


@pytest.mark.parametrize("misfire", ["once", "all"])
def test_what_was_placed_last_is_not_missed_because_the_rule_would_go_on(store, misfire):
    """With `once`, later ticks that are never placed had all three cancelled: none ran."""
    schedule = {**THRICE, "misfire": misfire}
    beat_at(store, NOW, own=schedule)
    beat_at(store, at(hours=5), own=schedule)

    assert run_due(store, at(hours=5)) == (minutes(2) if misfire == "once" else minutes(0, 1, 2))
    assert placed() == []


def test_a_one_off_that_was_missed_for_more_than_its_period_runs(store):
    one_off = {**DAILY, "max_runs": 1}
    beat_at(store, NOW, own=one_off)
    beat_at(store, at(hours=50), own=one_off)

    assert run_due(store, at(hours=50)) == [at(hours=2)]


def test_the_last_tick_is_not_missed_for_the_worker_that_claims_it_either(store):
    beat_at(store, store.now() - timedelta(days=3), own={**DAILY, "max_runs": 1})
    (claimed,) = claim_due(store, store.now())
    start(claimed)


@pytest.mark.parametrize(("most", "expected"), [(5, 5), (2, 2), (None, 10)])
def test_a_change_holds_for_ticks_that_were_placed_before(store, most, expected):
    beat_at(store, NOW, own=THRICE)
    beat_at(store, NOW + timedelta(seconds=5), own={**MINUTELY, **({} if most is None else {"max_runs": most})})

    assert placed() == minutes(*range(expected))


def test_raised_after_its_end_it_goes_on(store):
    beat_at(store, NOW, own=THRICE)
    run_due(store, at(minutes=3))
    beat_at(store, at(minutes=5), own={**THRICE, "max_runs": 5})

    assert placed() == minutes(6, 7)


def test_ticks_count_across_changes_of_the_definition(store):
    """A one-off ran again after a deploy that changed its arguments."""
    beat_at(store, NOW, own=THRICE)
    run_due(store, at(minutes=1, seconds=10))
    beat_at(store, at(minutes=1, seconds=10), own={**THRICE, "args": ["other"]})
    run_due(store, at(minutes=9))
    beat_at(store, at(minutes=20), own={**THRICE, "args": ["other again"]})

    assert ran() == minutes(0, 1, 2)
    assert placed() == []
    assert CronSchedule.objects.get().runs == 3


def test_switched_off_and_on_in_the_settings_it_does_not_begin_anew(store):
    beat_at(store, NOW, own=THRICE)
    run_due(store, at(minutes=3))
    beat_at(store, at(minutes=4), own={**THRICE, "enabled": False})
    beat_at(store, at(minutes=5), own=THRICE, new=HOURLY)

    assert placed("own") == []
    assert CronSchedule.objects.get(name="own").config_hash


def test_of_missed_ticks_no_more_are_placed_than_are_left(store):
    schedule = {**HOURLY, "misfire": "all", "max_runs": 4}
    beat_at(store, NOW, own=schedule)
    beat_at(store, at(hours=9, minutes=20), own=schedule)

    assert run_due(store, at(hours=9, minutes=20)) == [at(hour) for hour in range(4)]
    assert (placed(), cancelled()) == ([], {})
