"""Zones by name, and when their clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from delayedq.cron.expressions import Cron, as_zone, transition_after
from delayedq.exceptions import InvalidSchedule

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_zone_is_told_by_its_name():
    assert as_zone("America/New_York") is NEW_YORK


@pytest.mark.parametrize("name", ["", " ", None, 5, UTC, NEW_YORK])
def test_a_zone_must_have_a_name(name):
    with pytest.raises(InvalidSchedule, match="is the name of one, such as Europe/London, not"):
        as_zone(name)


NO_ZONES = [
    *("Mars/Olympus", "America", "America/", "Europe/London ", "a b", "+05:45", "zone.tab", "__init__.py", "x" * 5000),
    *("../etc/passwd", "../x", "/etc", "/etc/localtime", ".", "..", "America/../UTC", "C:\\Windows", "UTC\0", "\ud800"),
]


@pytest.mark.parametrize("name", NO_ZONES)
def test_what_names_no_zone_is_refused(name):
    with pytest.raises(InvalidSchedule, match="There is no time zone"):
        as_zone(name)


@pytest.mark.parametrize("zone", ["UTC", UTC, timezone(HOUR), None])
def test_a_schedule_takes_nothing_else_for_a_zone(zone):
    with pytest.raises(InvalidSchedule, match="A time zone is a ZoneInfo, not"):
        Cron("0 0 * * *", zone)


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        ("America/New_York", "2013-01-01", "2013-03-10T07:00"),
        ("America/New_York", "2013-03-10T06:59:59", "2013-03-10T07:00"),
        ("America/New_York", "2013-03-10T07:00", "2013-11-03T06:00"),
        ("Australia/Lord_Howe", "2013-01-01", "2013-04-06T15:00"),
        ("Pacific/Apia", "2011-10-01", "2011-12-30T10:00"),
        ("Asia/Kathmandu", "1985-12-01", "1985-12-31T18:30"),
        ("Africa/Monrovia", "1971-12-01", "1972-01-07T00:44:30"),
        ("UTC", "2013-01-01", None),
        ("Asia/Tokyo", "2013-01-01", None),
    ],
)
def test_the_next_change_of_a_clock(zone, after, expected):
    found = transition_after(ZoneInfo(zone), at(after), at(after) + 550 * DAY)
    assert found == (expected and at(expected))


def test_a_change_after_the_bound_is_not_found():
    assert transition_after(NEW_YORK, at("2013-01-01"), at("2013-03-10T07:00")) == at("2013-03-10T07:00")
    assert transition_after(NEW_YORK, at("2013-01-01"), at("2013-03-10T06:59:59")) is None
    assert transition_after(NEW_YORK, at("2013-01-01"), at("2012-01-01")) is None
    assert transition_after(NEW_YORK, at("1850-01-01"), at("1883-11-18T17:00")) == at("1883-11-18T17:00")
