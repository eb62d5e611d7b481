"""When schedules tick: the rule by name and date, and the ends of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from delayedq.cron.expressions import Cron, Every, latest, ticks
from delayedq.exceptions import InvalidSchedule

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def local_ticks(expression, zone, after, count):
    """As the local clock shows them, with its offset."""
    found = islice(Cron(expression, ZoneInfo(zone)).ticks_after(at(after, zone)), count)
    return [f"{tick.astimezone(ZoneInfo(zone)):%m-%dT%H:%M%z}" for tick in found]


# Wall-clock schedules


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["03-10T03:00-0400", "03-11T02:30-0400"]),
        ("15 3 * * *", ["03-10T03:15-0400", "03-11T03:15-0400"]),
        ("30 2 10 3 *", ["03-10T03:00-0400"]),
        ("*/20 2 * * *", ["03-10T03:00-0400", "03-11T02:00-0400"]),
        ("30 2,3 * * *", ["03-10T03:00-0400", "03-10T03:30-0400"]),
        ("0 2,3 * * *", ["03-10T03:00-0400", "03-11T02:00-0400"]),
        ("0 0-22 * * *", ["03-10T00:00-0500", "03-10T01:00-0500", "03-10T03:00-0400", "03-10T04:00-0400"]),
    ],
)
def test_a_skipped_time_comes_once_at_the_end_of_the_gap(expression, expected):
    assert local_ticks(expression, "America/New_York", "2013-03-09T23:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 1 * * *", ["11-03T01:30-0400", "11-04T01:30-0500"]),
        ("0 1 * * *", ["11-03T01:00-0400", "11-04T01:00-0500"]),
        ("0 2 * * *", ["11-03T02:00-0500", "11-04T02:00-0500"]),
        ("*/30 1 * * *", ["11-03T01:00-0400", "11-03T01:30-0400", "11-04T01:00-0500"]),
        ("30 0-22 * * *", ["11-03T00:30-0400", "11-03T01:30-0400", "11-03T02:30-0500"]),
    ],
)
def test_a_repeated_time_comes_the_first_time_only(expression, expected):
    assert local_ticks(expression, "America/New_York", "2013-11-02T23:00", len(expected)) == expected


@pytest.mark.parametrize("minute", range(0, 60, 7))
def test_nothing_comes_in_the_second_turn_of_an_hour_whenever_one_asks(minute):
    in_second_turn = datetime(2013, 11, 3, 1, minute, tzinfo=NEW_YORK, fold=1)
    assert Cron("* 1 * * *", NEW_YORK).next_after(in_second_turn) == at("2013-11-04T06:00")


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        ("Australia/Lord_Howe", "15 2 * * *", "2013-10-05T12:00", ["10-06T02:30+1100", "10-07T02:15+1100"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2013-04-06T12:00", ["04-07T01:45+1100", "04-08T01:45+1030"]),
        ("Africa/Casablanca", "30 2 * * *", "2024-03-09T12:00", ["03-10T02:30+0100", "03-11T02:30+0000"]),
        ("Africa/Casablanca", "30 2 * * *", "2024-04-13T12:00", ["04-14T03:00+0100", "04-15T02:30+0100"]),
        (
            "Pacific/Apia",
            "0 12 * * *",
            "2011-12-29T00:00",
            ["12-29T12:00-1000", "12-31T00:00+1400", "12-31T12:00+1400"],
        ),
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-01T00:00", ["12-31T00:00+1400", "12-30T12:00+1400"]),
        ("Pacific/Kiritimati", "0 5,6 31 12 *", "1994-12-01T00:00", ["01-01T00:00+1400", "12-31T05:00+1400"]),
        ("Asia/Kathmandu", "10 0 1 1 *", "1985-12-01T00:00", ["01-01T00:15+0545", "01-01T00:10+0545"]),
        ("America/St_Johns", "30 23 * * *", "2010-11-06T12:00", ["11-06T23:30-0230", "11-07T23:30-0330"]),
        ("America/St_Johns", "0 0 * * *", "2010-11-06T12:00", ["11-07T00:00-0230", "11-08T00:00-0330"]),
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00", ["11-04T01:00-0200", "11-05T00:00-0200"]),
        ("Pacific/Kwajalein", "0 8,20 * * *", "1969-09-30T12:00", ["09-30T20:00+1100", "10-01T08:00-1200"]),
    ],
)
def test_the_rule_holds_for_every_kind_of_offset_change(zone, expression, after, expected):
    assert local_ticks(expression, zone, after, len(expected)) == expected


# Elapsed schedules


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("30 * * * *", "2013-03-10T01:00", ["03-10T01:30-0500", "03-10T03:30-0400", "03-10T04:30-0400"]),
        ("0 */2 * * *", "2013-03-09T23:00", ["03-10T00:00-0500", "03-10T04:00-0400", "03-10T06:00-0400"]),
        ("30 0-23 * * *", "2013-03-10T01:00", ["03-10T01:30-0500", "03-10T03:30-0400"]),
        ("30 * 10 3 *", "2013-03-10T01:45", ["03-10T03:30-0400", "03-10T04:30-0400"]),
        ("30 * * * *", "2013-11-03T00:45", ["11-03T01:30-0400", "11-03T01:30-0500", "11-03T02:30-0500"]),
        ("0 */2 * * *", "2013-11-02T23:00", ["11-03T00:00-0400", "11-03T02:00-0500"]),
        ("0 1-23,0 * * *", "2013-11-03T00:45", ["11-03T01:00-0400", "11-03T01:00-0500", "11-03T02:00-0500"]),
    ],
)
def test_hours_that_go_on_follow_what_the_clock_shows(expression, after, expected):
    assert local_ticks(expression, "America/New_York", after, len(expected)) == expected


@pytest.mark.parametrize("day", ["2013-03-10", "2013-11-03", "2013-07-01"])
def test_every_quarter_of_an_hour_stays_one_on_any_day(day):
    start = at(day)
    assert [*ticks(Cron("*/15 * * * *", NEW_YORK), start, start + DAY)] == [
        start + n * 15 * MINUTE for n in range(1, 97)
    ]


def test_a_clock_that_goes_back_into_the_day_before_shows_its_minutes_again():
    assert local_ticks("*/30 * * * *", "America/St_Johns", "2010-11-06T23:15", 5) == [
        "11-06T23:30-0230",
        "11-07T00:00-0230",
        "11-06T23:30-0330",
        "11-07T00:00-0330",
        "11-07T00:30-0330",
    ]


# Where croniter differs


@pytest.mark.parametrize(
    ("expression", "after", "ours", "theirs"),
    [
        # It repeats wall-clock times,
        ("30 1 * * *", "2013-11-02T23:00", ["03 05:30", "04 06:30"], ["03 05:30", "03 06:30"]),
        # and lets hours that go on come at the end of a gap.
        ("0 */2 * * *", "2013-03-10T00:00", ["10 08:00", "10 10:00"], ["10 07:00", "10 08:00"]),
    ],
)
def test_plain_croniter_differs_when_clocks_are_changed(expression, after, ours, theirs):
    start = at(after, "America/New_York")
    plain = croniter(expression, start, datetime)
    assert [f"{tick:%d %H:%M}" for tick in islice(Cron(expression, NEW_YORK).ticks_after(start), 2)] == ours
    assert [f"{plain.get_next().astimezone(UTC):%d %H:%M}" for _ in range(2)] == theirs


@pytest.mark.parametrize(
    "expression", ["30 1 * * *", "0 */2 L * *", "*/7 9-17 13 * fri", "5 4 * * sun#2", "0 9 15W * *"]
)
def test_plain_croniter_agrees_where_they_are_not(expression):
    start = at("2013-01-01T00:00:00")
    plain = croniter(expression, start, datetime)
    assert [*islice(Cron(expression, ZoneInfo("UTC")).ticks_after(start), 100)] == [
        plain.get_next() for _ in range(100)
    ]


# Instants


def test_results_are_whole_seconds_in_utc_whatever_is_asked():
    asked = datetime(2013, 7, 1, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=3, seconds=7)))
    for schedule in (Cron("* * * * * *", ZoneInfo("Europe/Amsterdam")), Every(SECOND)):
        tick = schedule.next_after(asked)
        assert (tick, tick.tzinfo) == (at("2013-07-01T08:59:54"), UTC)


@pytest.mark.parametrize("schedule", [Cron("0 * * * *", NEW_YORK), Every(HOUR)])
def test_the_next_tick_is_later_than_the_instant_even_if_that_is_one(schedule):
    assert schedule.next_after(at("2013-07-01T08:59:59.999999")) == at("2013-07-01T09:00")
    assert schedule.next_after(at("2013-07-01T09:00")) == at("2013-07-01T10:00")


def test_the_sixth_field_is_the_second():
    assert [*ticks(Cron("1 2 * * * 58,3", ZoneInfo("UTC")), at("2013-01-01"), at("2013-01-03"))] == [
        at("2013-01-01T02:01:03"),
        at("2013-01-01T02:01:58"),
        at("2013-01-02T02:01:03"),
        at("2013-01-02T02:01:58"),
    ]


NAIVE = datetime(2013, 1, 1)  # noqa: DTZ001 - on purpose


@pytest.mark.parametrize("schedule", [Cron("0 * * * *", NEW_YORK), Every(HOUR)])
def test_a_naive_time_is_no_instant(schedule):
    aware = NAIVE.replace(tzinfo=UTC)
    for ask in (
        lambda: schedule.next_after(NAIVE),
        lambda: ticks(schedule, NAIVE, aware),
        lambda: ticks(schedule, aware, NAIVE),
        lambda: latest(schedule, aware, NAIVE),
    ):
        with pytest.raises(ValueError, match="is an aware datetime"):
            ask()


@pytest.mark.parametrize(
    "zone", [UTC, timezone(14 * HOUR), timezone(-14 * HOUR), NEW_YORK, ZoneInfo("Pacific/Kiritimati")], ids=str
)
@pytest.mark.parametrize(
    "schedule", [Cron("* * * * *", NEW_YORK), Cron("0 5 29 2 *", ZoneInfo("Asia/Tokyo")), Every(7 * DAY)], ids=str
)
def test_the_ends_of_time_are_no_error(schedule, zone):
    first, last = datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)
    assert schedule.next_after(first).year in {1, 2, 4}
    assert schedule.next_after(first + DAY).year in {1, 2, 4}
    assert schedule.next_after(last) is None
    assert [*ticks(schedule, last - DAY, last)] == []
    assert latest(schedule, first, at("2013-01-01")).year in {2012, 2013}
    assert latest(schedule, last, at("2013-01-01")) is None


def test_the_last_tick_of_all_is_in_the_year_9998():
    last = at("9998-12-31T23:59")
    every_minute = Cron("* * * * *", ZoneInfo("UTC"))
    assert every_minute.next_after(last - SECOND) == last
    assert every_minute.next_after(last) is None
    for never_again in ("0 0 29 2 *", "0 0 * 12 mon#5"):
        assert Cron(never_again, ZoneInfo("UTC")).next_after(at("9998-12-31")) is None
    assert latest(every_minute, at("2013-01-01"), datetime.max.replace(tzinfo=UTC)) == last


# Every


@pytest.mark.parametrize(
    ("period", "instant", "expected"),
    [
        (HOUR, "2013-01-01T10:37:42.123", "2013-01-01T11:00"),
        (HOUR, "2013-01-01T11:00", "2013-01-01T12:00"),
        (SECOND, "2013-01-01T11:00:00.5", "2013-01-01T11:00:01"),
        (7 * DAY, "2013-01-01T11:00", "2013-01-03T00:00"),  # 1 January 1970 was a Thursday
        (90 * MINUTE, "2013-01-01T10:37", "2013-01-01T12:00"),
        (HOUR, "1969-12-31T22:30", "1969-12-31T23:00"),
    ],
)
def test_a_period_is_counted_from_the_epoch(period, instant, expected):
    assert Every(period).next_after(at(instant)) == at(expected)


def test_a_period_knows_no_change_of_clocks():
    start = at("2013-11-03T00:30", "America/New_York")
    assert [tick.hour for tick in islice(Every(HOUR).ticks_after(start), 4)] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("period", "complaint"),
    [
        (3600, "is a timedelta, not 3600"),
        (None, "is a timedelta, not None"),
        (timedelta(0), "one second or more, in whole seconds, not 0:00:00"),
        (-HOUR, "one second or more"),
        (SECOND / 2, "one second or more"),
        (SECOND * 1.5, "in whole seconds, not 0:00:01.500000"),
        (timedelta.max, "ends outside the range"),
    ],
)
def test_a_period_that_can_not_be_kept_is_refused(period, complaint):
    with pytest.raises(InvalidSchedule, match=complaint):
        Every(period)
