"""What holds for any schedule, at any time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.cron.expressions import Cron, Every, latest, ticks
from tests.cron.oracle import expressions

QUICK = settings(max_examples=200, deadline=None)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
NAMES = [
    *("America/New_York", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kiritimati", "UTC"),
    *("Africa/Casablanca", "Asia/Kathmandu", "America/St_Johns", "Antarctica/Troll", "Pacific/Kwajalein"),
]
#: Where their clocks are changed, it matters.
CHANGES = [
    datetime(2013, 3, 10, 7, tzinfo=UTC),
    datetime(2013, 11, 3, 6, tzinfo=UTC),
    datetime(2013, 4, 6, 15, tzinfo=UTC),
    datetime(2010, 11, 7, 2, 31, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
    datetime(1994, 12, 31, 10, tzinfo=UTC),
    datetime(1969, 9, 30, 13, tzinfo=UTC),
]

zones = st.sampled_from([ZoneInfo(name) for name in NAMES])
drawn = st.sampled_from([str(expression) for expression in expressions(200, seed=7)] + ["H H * * *", "*/5 R/3 * * *"])
crons = st.builds(Cron, drawn, zones, st.text(min_size=1))
periods = st.integers(1, 10**7).map(lambda seconds: Every(seconds * SECOND))
schedules = crons | periods
anywhen = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
near_changes = st.builds(datetime.__add__, st.sampled_from(CHANGES), st.timedeltas(-2 * DAY, 2 * DAY))
instants = anywhen | near_changes
spans = st.timedeltas(timedelta(0), 3 * DAY)
offsets = st.integers(-23 * 3600, 23 * 3600).map(lambda seconds: timezone(seconds * SECOND))


@QUICK
@given(schedules, instants)
def test_the_next_tick_is_later_a_whole_second_and_in_utc(schedule, instant):
    following = schedule.next_after(instant)
    assert following > instant
    assert (following.tzinfo, following.microsecond) == (UTC, 0)


@QUICK
@given(schedules, instants, spans)
def test_nothing_comes_between_an_instant_and_its_next_tick(schedule, instant, span):
    following = schedule.next_after(instant)
    between = min(instant + span, following - timedelta.resolution)
    assert schedule.next_after(between) == following


@QUICK
@given(schedules, instants)
def test_ticks_are_the_next_tick_again_and_again(schedule, instant):
    walked = list(islice(schedule.ticks_after(instant), 50))
    assert walked == [schedule.next_after(before) for before in [instant, *walked[:-1]]]
    assert all(before < after for before, after in pairwise(walked))


@QUICK
@given(schedules, instants, spans)
def test_the_latest_tick_is_the_last_of_them(schedule, after, span):
    within = list(islice(ticks(schedule, after, after + span), 2_000))
    until = after + span if len(within) < 2_000 else within[-1]
    assert latest(schedule, after, until) == (within[-1] if within else None)


@QUICK
@given(schedules, instants, spans)
def test_ticks_of_two_spans_are_those_of_both_together(schedule, after, span):
    middle, end = after + span / 3, after + span
    parts = [*islice(ticks(schedule, after, middle), 500), *islice(ticks(schedule, middle, end), 500)]
    if len(parts) < 500:
        assert parts == [*ticks(schedule, after, end)]


@QUICK
@given(schedules, instants, zones | offsets)
def test_it_does_not_matter_in_which_zone_an_instant_is_told(schedule, instant, zone):
    before = instant - DAY
    told_before, told = before.astimezone(zone), instant.astimezone(zone)
    assert schedule.next_after(told) == schedule.next_after(instant)
    assert latest(schedule, told_before, told) == latest(schedule, before, instant)
    assert [*islice(ticks(schedule, told_before, told), 99)] == [*islice(ticks(schedule, before, instant), 99)]


@QUICK
@given(crons, instants)
def test_an_elapsed_schedule_ticks_only_when_its_clock_shows_a_time_of_its_own(cron, instant):
    shown = cron.next_after(instant).astimezone(cron.zone).replace(tzinfo=UTC)
    plain = Cron(cron.expression, ZoneInfo("UTC"), cron.seed)
    if not cron.wall_clock:
        assert plain.next_after(shown - timedelta.resolution) == shown


@QUICK
@given(drawn, zones, st.text(min_size=1), instants)
def test_a_seed_always_draws_the_same(expression, zone, seed, instant):
    assert Cron(expression, zone, seed).next_after(instant) == Cron(expression, zone, seed).next_after(instant)
