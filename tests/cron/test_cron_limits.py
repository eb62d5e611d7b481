"""Ticks between two instants, the latest of them, and schedules with an anchor, a start and an end."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from delayedq.cron.expressions import Cron, Every, Within, latest, ticks, transition_after
from delayedq.exceptions import InvalidSchedule
from tests.cron.test_expressions import DAY, HOUR, MINUTE, NEW_YORK, SECOND, at

# Many ticks, and the latest


def test_ticks_are_those_after_the_first_instant_up_to_and_with_the_second():
    hourly = Every(HOUR)
    assert [*ticks(hourly, at("2013-01-01T10:00"), at("2013-01-01T12:00"))] == [
        at("2013-01-01T11:00"),
        at("2013-01-01T12:00"),
    ]
    assert [*ticks(hourly, at("2013-01-01T10:00"), at("2013-01-01T10:59:59"))] == []
    assert [*ticks(hourly, at("2013-01-01T10:00"), at("2013-01-01T09:00"))] == []


def test_bounds_in_the_zone_of_a_repeated_hour_are_told_apart():
    """Python compares times of one zone by their wall time alone, and takes the two 01:30 for the same."""
    first, second = (datetime(2013, 11, 3, 1, 30, fold=fold, tzinfo=NEW_YORK) for fold in (0, 1))
    assert len([*ticks(Every(MINUTE), first, second)]) == 60
    assert latest(Every(HOUR), first, second) == at("2013-11-03T06:00")
    assert transition_after(NEW_YORK, first, second) == at("2013-11-03T06:00")


class Counting:
    """A schedule that counts how often it is asked."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.asked = 0

    def next_after(self, instant):
        self.asked += 1
        return self.schedule.next_after(instant)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Cron("* * * * * *", NEW_YORK), "2013-06-30T12:00:00"),
        (Cron("* * * * *", NEW_YORK), "2013-06-30T12:00"),
        (Cron("* * * 1 * *", NEW_YORK), "2013-02-01T04:59:59"),
        (Cron("0 0 29 2 *", NEW_YORK), "2012-02-29T05:00"),
        (Every(SECOND), "2013-06-30T12:00:00"),
        (Every(10_000 * DAY), "1997-05-19"),
    ],
)
def test_the_latest_of_millions_is_found_by_asking_a_few_times(schedule, expected):
    counting = Counting(schedule)
    assert latest(counting, at("1990-01-01"), at("2013-06-30T12:00")) == at(expected)
    assert counting.asked < 80


def test_there_is_no_latest_where_there_is_none():
    new_year = Cron("0 0 1 1 *", ZoneInfo("UTC"))
    assert latest(new_year, at("2013-01-01"), at("2013-12-31")) is None
    assert latest(new_year, at("2012-12-31"), at("2013-01-01")) == at("2013-01-01")
    assert latest(new_year, at("2014-01-01"), at("2013-01-01")) is None
    assert latest(new_year, at("2013-01-01"), at("2013-01-01")) is None


# Anchor, start and end


def test_a_period_counts_from_its_anchor_in_both_directions():
    every = Every(90 * MINUTE, at("2013-01-01T10:10"))
    assert every.next_after(at("2013-01-01T10:10")) == at("2013-01-01T11:40")
    assert every.next_after(at("2013-01-01T08:00")) == at("2013-01-01T08:40")


@pytest.mark.parametrize("anchor", [None, "2013", datetime(2013, 1, 1), at("2013-01-01T00:00:00.5")])  # noqa: DTZ001
def test_an_anchor_is_an_aware_datetime_in_whole_seconds(anchor):
    with pytest.raises(InvalidSchedule, match="The anchor of a schedule is an aware datetime in whole seconds, not"):
        Every(HOUR, anchor)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, "2013-01-01T03:00", [1, 2, 3]),
        ("2013-01-01T02:00", "2013-01-01T03:59", [2, 3]),
        ("2013-01-01T01:30", "2013-01-01T02:00", [2]),
        (None, "2012-01-01", []),
    ],
)
def test_a_schedule_has_a_start_and_an_end_both_included(start, end, expected):
    within = Within(Every(HOUR), start and at(start), end and at(end))
    assert [tick.hour for tick in within.ticks_after(at("2013-01-01"))] == expected
    assert (within.next_after(at("2013-01-01")) is None) == (expected == [])


def test_a_start_without_an_end_goes_on():
    assert Within(Every(HOUR), at("2013-01-01T05:00")).next_after(at("2012-01-01")) == at("2013-01-01T05:00")


def test_an_end_is_not_before_the_start():
    with pytest.raises(InvalidSchedule, match="must not be before its start"):
        Within(Every(HOUR), at("2013-01-02"), at("2013-01-01"))
