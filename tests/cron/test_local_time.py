"""Zones that change their clocks at moments of our choice, and how they are cut into stretches."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone
from io import BytesIO
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.cron.expressions import EARLIEST, LATEST, Cron, LocalTimes, as_utc, stretches

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def zone_changed(change, before, after):
    """A zone whose clock is changed once, from `before` seconds ahead of UTC to `after` (the TZif format, RFC 9636)."""
    header = struct.pack(">4s16x6l", b"TZif", 0, 0, 0, 1, 2, 4)
    offsets = struct.pack(">lbblbb", before, 0, 0, after, 0, 0)
    return ZoneInfo.from_file(BytesIO(header + struct.pack(">lB", int(change.timestamp()), 1) + offsets + b"LOC\0"))


#: A wall-clock schedule.
NAMED = "0,30 0-22 * * *"
CHANGES = [
    at("2013-06-15T12:34:56"),
    at("2013-06-15T00:00:01"),
    at("2013-06-15T23:59:59"),
    at("2013-06-15T00:00:00"),
    at("2013-12-31T23:30:00"),
    at("2014-01-01T00:00:00"),
    at("2014-01-01T00:00:01"),
    at("2013-01-01T00:00:00"),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize(("before", "after"), [(0, 3600), (3600, 0), (-40_000, 40_000), (50_000, -30_000), (0, 1)])
def test_a_change_is_found_to_the_second(change, before, after):
    found = stretches(zone_changed(change, before, after), at("2012-06-01"))
    cut = [*takewhile(lambda stretch: stretch.start < at("2015-01-01"), found)]
    assert all(one.end == other.start for one, other in pairwise(cut))
    assert {stretch.offset // SECOND for stretch in cut if stretch.start < change and stretch.start < stretch.end} == {
        before
    }
    assert {stretch.offset // SECOND for stretch in cut if stretch.start >= change} == {after}
    assert change in {stretch.start for stretch in cut}


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("jump", [2 * HOUR, 20 * HOUR])
def test_each_local_time_comes_once_when_a_clock_is_put_back(change, jump):
    zone = zone_changed(change, 36_000, 36_000 - jump // SECOND)
    ticks = islice(Cron(NAMED, zone).ticks_after(change - 3 * DAY), 400)
    shown = [tick.astimezone(zone).replace(tzinfo=UTC) for tick in ticks]
    assert shown == [*islice(Cron(NAMED, ZoneInfo("UTC")).ticks_after(shown[0] - SECOND), 400)]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("jump", [2 * HOUR, 20 * HOUR])
def test_all_local_times_of_a_gap_come_together_at_its_end(change, jump):
    cron = Cron(NAMED, zone_changed(change, 0, jump // SECOND))
    assert change in islice(cron.ticks_after(change - DAY), 100)
    assert cron.next_after(change) > change
    assert cron.next_after(change - SECOND / 2) == change


def test_stretches_begin_where_one_asks_and_end_with_all_time():
    (only,) = islice(stretches(ZoneInfo("Asia/Tokyo"), at("2013-05-05T05:00")), 1)
    assert only == (at("2013-05-05T05:00"), at("2014-01-01"), 9 * HOUR)
    assert [*stretches(ZoneInfo("UTC"), LATEST)] == []
    assert next(stretches(ZoneInfo("UTC"), datetime.min.replace(tzinfo=UTC))).start == EARLIEST


def test_an_instant_that_utc_can_not_hold_is_an_end_of_all_time():
    east, west = timezone(14 * HOUR), timezone(-12 * HOUR)
    assert as_utc(datetime.min.replace(tzinfo=east)) == EARLIEST
    assert as_utc(datetime.max.replace(tzinfo=west)) == LATEST


minutes = st.lists(st.integers(0, 1439), min_size=1, max_size=20, unique=True).map(sorted)
seconds = st.lists(st.integers(0, 59), min_size=1, max_size=5, unique=True).map(sorted)
moments = st.datetimes(datetime(2013, 1, 1), datetime(2013, 1, 5), timezones=st.just(UTC))  # noqa: DTZ001


@settings(max_examples=200, deadline=None)
@given(minutes, seconds, moments, st.timedeltas(timedelta(0), 3 * DAY))
def test_local_times_between_two_readings_are_those_of_each_day_from_the_first_until_before_the_second(
    of_day, of_minute, begin, span
):
    times = LocalTimes(tuple(timedelta(minutes=m) for m in of_day), tuple(timedelta(seconds=s) for s in of_minute))
    every = [
        at("2013-01-01") + timedelta(days=d, minutes=m, seconds=s) for d in range(9) for m in of_day for s in of_minute
    ]
    assert [*times.between(begin, begin + span)] == [reading for reading in every if begin <= reading < begin + span]
