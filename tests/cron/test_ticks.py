"""Names of ticks, missed ticks, and daily schedules."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.cron.ticks import (
    SKIP_AFTER,
    DailySchedule,
    Misfire,
    config_hash,
    daily_hash,
    expires_at,
    jittered,
    periodic_hash,
    still_due,
    tick_key,
)
from delayedq.exceptions import InvalidSchedule

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
UTC_ZONE, NEW_YORK = ZoneInfo("UTC"), ZoneInfo("America/New_York")


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Names: golden values of the upstream system


def test_the_hash_of_a_period_is_that_of_upstream():
    assert periodic_hash(HOUR) == "4916474562628112070d240d515ba44d"
    assert periodic_hash(HOUR + timedelta(milliseconds=1)) != periodic_hash(HOUR)


def test_the_hash_of_a_daily_schedule_is_that_of_upstream():
    assert daily_hash("UTC", [time(12), time(18)]) == "ac4a97d66f972bdaad77be2731bb7c2a"


def test_the_hash_of_a_daily_schedule_does_not_depend_on_the_order_of_its_hours():
    assert daily_hash("UTC", [time(18), time(12), time(18)]) == daily_hash("UTC", [time(12), time(18)])


def test_the_hash_of_a_daily_schedule_varies_with_zone_and_hours():
    zoned, houred = daily_hash("Europe/London", [time(12)]), daily_hash("UTC", [time(12), time(13)])
    assert len({daily_hash("UTC", [time(12)]), zoned, houred}) == 3


@pytest.mark.parametrize(
    ("hour", "text"),
    [
        (time(9, 5), "09:05"),
        (time(9, 5, 7), "09:05:07"),
        (time(9, 5, 0, 500_000), "09:05:00.500"),
        (time(9, 5, 7, 1), "09:05:07.000001"),
    ],
)
def test_hours_are_written_as_java_writes_them(hour, text):
    assert daily_hash("UTC", [hour]) == config_hash(f"\ndaily-cron:\n  zone: UTC\n  hours: {text}\n")


def test_a_config_hash_is_the_md5_of_the_text():
    assert config_hash("") == "d41d8cd98f00b204e9800998ecf8427e"
    assert config_hash("Grüße") == "49c5f675b49037b6044b803ac9d1a6d7"


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (at("2013-03-10T07:00"), "20130310-070000.000000000"),
        (at("2013-03-10T07:00:01.000002"), "20130310-070001.000002000"),
        (datetime(2013, 11, 3, 1, 30, tzinfo=NEW_YORK), "20131103-053000.000000000"),
        (datetime(2013, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1), "20131103-063000.000000000"),
        (datetime.min.replace(tzinfo=UTC), "00010101-000000.000000000"),
    ],
)
def test_the_key_of_a_tick_tells_its_instant_in_utc_down_to_nanoseconds(instant, text):
    assert tick_key("daily/report", "abc", instant) == f"daily/report/abc/{text}"


def test_a_naive_time_is_no_instant():
    naive = at("2013-03-10").replace(tzinfo=None)
    with pytest.raises(ValueError, match="is an aware datetime"):
        tick_key("daily", "abc", naive)
    with pytest.raises(ValueError, match="is an aware datetime"):
        daily(time(12)).next_times(naive)


# Misfires

NOW = at("2013-01-01T12:00")
#: How late each of the missed ticks is, in minutes.
LATE = (180, 120, 60, 1, 0.5)


@pytest.mark.parametrize(
    ("misfire", "deadline", "late", "due"),
    [
        (Misfire.ONCE, None, LATE, [1, 0.5]),
        (Misfire.ONCE, None, (180, 120), [120]),
        (Misfire.ONCE, 60, (180, 60), [60]),
        (Misfire.ONCE, 60, (180, 60.01), []),
        (Misfire.ALL, None, LATE, [180, 120, 60, 1, 0.5]),
        (Misfire.ALL, 60, LATE, [60, 1, 0.5]),
        (Misfire.ALL, 0.1, LATE, []),
        (Misfire.SKIP, None, LATE, [1, 0.5]),
        (Misfire.SKIP, None, (1.01,), []),
        (Misfire.SKIP, 120, LATE, [120, 60, 1, 0.5]),
        (Misfire.SKIP, 0.75, LATE, [0.5]),
        (Misfire.ONCE, None, (), []),
        (Misfire.ALL, 60, (), []),
    ],
)
def test_which_missed_ticks_still_run(misfire, deadline, late, due):
    missed = [NOW - minutes * MINUTE for minutes in late]
    found = still_due(missed, misfire, deadline and deadline * MINUTE, NOW)
    assert found == [NOW - minutes * MINUTE for minutes in due]


def test_hardly_late_is_up_to_a_minute():
    assert SKIP_AFTER == MINUTE


def test_lateness_is_elapsed_time_also_in_a_repeated_hour():
    tick, now = (datetime(2013, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=fold) for fold in (0, 1))
    assert still_due([tick], Misfire.SKIP, None, now) == []


def test_a_misfire_is_its_word():
    assert [Misfire(word) for word in ("once", "skip", "all")] == list(Misfire)


# Daily schedules


def daily(*hours, zone=UTC_ZONE, advance=DAY, interval=HOUR):
    return DailySchedule(zone, hours, advance, interval)


@pytest.mark.parametrize(
    ("advance", "now", "expected"),
    [
        (7 * HOUR, "2013-01-01T12:00", ["01T18:00"]),
        (DAY, "2013-01-01T20:00", ["02T12:00", "02T18:00"]),
        (MINUTE, "2013-01-01T12:30", ["01T18:00"]),
        (timedelta(0), "2013-01-01T18:00", ["02T12:00"]),
        (6 * HOUR, "2013-01-01T12:00", ["01T18:00"]),
        (DAY, "2013-01-01T12:00", ["01T18:00", "02T12:00"]),
        (2 * DAY, "2013-01-01T11:59:59.999999", ["01T12:00", "01T18:00", "02T12:00", "02T18:00"]),
    ],
)
def test_the_next_times_are_those_up_to_the_advance_and_at_least_one(advance, now, expected):
    found = daily(time(12), time(18), advance=advance).next_times(at(now))
    assert [f"{tick:%dT%H:%M}" for tick in found] == expected


def test_hours_are_sorted_and_merged():
    schedule = daily(time(18), time(12), time(18))
    assert schedule.hours == (time(12), time(18))
    assert schedule == daily(time(12), time(18))


def test_an_hour_may_have_seconds_and_a_fraction():
    assert daily(time(12, 0, 1, 500), advance=HOUR).next_times(at("2013-01-01")) == [at("2013-01-01T12:00:01.000500")]


def test_a_repeated_hour_comes_once_whenever_one_asks():
    """01:30 at 05:30 UTC, and not again at 06:30."""
    schedule = daily(time(1, 30), zone=NEW_YORK)
    assert schedule.next_times(at("2013-11-03T05:29")) == [at("2013-11-03T05:30")]
    for now in ("2013-11-03T05:30", "2013-11-03T06:10", "2013-11-03T06:30"):
        assert schedule.next_times(at(now)) == [at("2013-11-04T06:30")]


def test_a_skipped_hour_comes_at_the_end_of_the_gap_and_the_hour_after_it_at_its_own_time():
    found = daily(time(2, 30), time(3, 15), zone=NEW_YORK).next_times(at("2013-03-10T05:00"))
    assert found == [at("2013-03-10T07:00"), at("2013-03-10T07:15")]


def test_all_hours_of_the_day_are_still_wall_clock_times():
    every_hour = daily(*map(time, range(24)), zone=NEW_YORK)
    assert len(every_hour.next_times(at("2013-11-03T04:00"))) == 23
    assert len(every_hour.next_times(at("2013-03-10T05:00"))) == 24


def test_there_is_no_next_time_at_the_end_of_all_time():
    assert daily(time(12)).next_times(datetime.max.replace(tzinfo=UTC)) == []
    assert daily(time(12), advance=timedelta.max).next_times(at("9998-12-30T12:00")) == [at("9998-12-31T12:00")]


hours = st.lists(st.times(), min_size=1, max_size=5)
zones = st.sampled_from(
    ["America/New_York", "Pacific/Apia", "Africa/Casablanca", "Australia/Lord_Howe", "America/St_Johns"]
)
instants = st.datetimes(datetime(2010, 1, 1), datetime(2025, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
days = st.integers(0, 20).map(lambda number: number * DAY)


@settings(max_examples=200, deadline=None)
@given(hours, zones, instants, days, st.integers(-12, 14))
def test_next_times_are_later_rising_within_the_advance_and_all_of_them(hours, zone, now, advance, offset):
    schedule = daily(*hours, zone=ZoneInfo(zone), advance=advance)
    first, *others = found = schedule.next_times(now.astimezone(timezone(offset * HOUR)))
    assert found == sorted(set(found))
    assert first > now
    assert all(tick <= now + advance for tick in others)
    assert schedule.next_times(found[-1])[0] > now + advance
    assert all(schedule.next_times(before)[0] == after for before, after in zip(found, others, strict=False))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"zone": "UTC"}, "A time zone is a ZoneInfo, not 'UTC'"),
        ({"hours": ()}, "at least one hour"),
        ({"hours": None}, "are times, not None"),
        ({"hours": "12:00"}, "is a time, not '1'"),
        ({"hours": (12, 18)}, "is a time, not 12"),
        ({"hours": (time(12), at("2013-01-01"))}, "is a time, not datetime"),
        ({"hours": (time(12, tzinfo=UTC),)}, "is naive, since it has a zone, unlike"),
        ({"schedule_in_advance": -HOUR}, "schedule_in_advance is zero or more, not -1 day, 23:00:00"),
        ({"schedule_in_advance": 3600}, "schedule_in_advance is a timedelta, not 3600"),
        ({"schedule_interval": timedelta(0)}, "schedule_interval is over zero, not 0:00:00"),
        ({"schedule_interval": -HOUR}, "schedule_interval is over zero"),
        ({"schedule_interval": None}, "schedule_interval is a timedelta, not None"),
    ],
)
def test_a_daily_schedule_that_can_not_be_kept_is_refused(changed, complaint):
    good = {"zone": UTC_ZONE, "hours": (time(12),), "schedule_in_advance": DAY, "schedule_interval": HOUR}
    with pytest.raises(InvalidSchedule, match=complaint):
        DailySchedule(**good | changed)


# Expiry, jitter


@pytest.mark.parametrize(
    ("misfire", "deadline", "following", "expected"),
    [
        (Misfire.ALL, None, HOUR, None),
        (Misfire.ALL, 2 * HOUR, HOUR, 2 * HOUR),
        (Misfire.SKIP, None, HOUR, SKIP_AFTER),
        (Misfire.SKIP, 3 * HOUR, HOUR, 3 * HOUR),
        (Misfire.ONCE, None, HOUR, HOUR),
        (Misfire.ONCE, None, None, None),
        (Misfire.ONCE, None, timedelta(seconds=1), SKIP_AFTER),
        (Misfire.ONCE, 5 * MINUTE, HOUR, 5 * MINUTE),
    ],
)
def test_a_tick_expires_by_its_policy(misfire, deadline, following, expected):
    due = at("2026-05-20T10:00:00")
    found = expires_at(due, following and due + following, misfire, deadline)
    assert found == (expected and due + expected)


def test_a_deadline_beyond_all_time_is_the_end_of_time():
    assert expires_at(at("2026-05-20T10:00:00"), None, Misfire.ALL, timedelta.max).year == 9999


def test_jitter_is_stable_and_spread_over_its_whole_length():
    moment = at("2026-05-20T10:00:00")
    shares = [(jittered(f"n{n}", moment, HOUR) - moment) / HOUR for n in range(1_000)]
    assert all(0 <= share < 1 for share in shares)
    assert [sum(low / 4 <= share < (low + 1) / 4 for share in shares) // 200 for low in range(4)] == [1, 1, 1, 1]
    assert jittered("n", moment, HOUR) == jittered("n", moment.astimezone(NEW_YORK), HOUR)
    assert jittered("n", moment, HOUR) - moment != jittered("n", moment + DAY, HOUR) - (moment + DAY)
