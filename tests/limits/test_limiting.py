"""Limits and rates as values; token buckets and turns against what they promise."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.limits.rates import TokenBucket, after, last_start, release_at, startable
from delayedq.limits.rules import FARTHEST, Limit, Rate

NOW = datetime(2026, 3, 8, 7, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RATES = st.builds(
    Rate,
    st.integers(1, 9),
    st.timedeltas(timedelta(milliseconds=10), timedelta(hours=2)),
    st.none() | st.integers(1, 9),
    retries=st.booleans(),
)
PAUSES = st.lists(st.timedeltas(timedelta(), timedelta(minutes=3)), min_size=1, max_size=20)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


# Values


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, 2**31, float("nan"), Decimal(2)])
def test_what_is_no_number_of_messages_is_refused(number):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Limit(concurrency=number)
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Rate(number, SECOND)
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Rate(1, SECOND, burst=number)


@pytest.mark.parametrize("per", [timedelta(), -SECOND, 1, None, timedelta.max])
def test_what_is_no_duration_is_refused(per):
    with pytest.raises(ValueError, match="timedelta over zero"):
        Rate(1, per)


@pytest.mark.parametrize("terms", [{"rate": 5}, {"name": " "}, {"name": 7}])
def test_what_is_no_rate_and_no_name_is_refused(terms):
    with pytest.raises(ValueError, match="is a"):
        Limit(**terms)


@settings(deadline=None)
@given(st.none() | RATES, st.none() | st.integers(1, 10**6))
def test_what_is_stored_of_a_limit_is_read_back(rate, concurrency):
    limit = Limit(concurrency=concurrency, rate=rate, weight=2.5, share=3)
    assert Limit().overridden(json.loads(json.dumps(limit.as_json()))) == limit


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"weight": 0}, "weight of a Limit is from"),
        ({"weight": True}, "weight of a Limit is from"),
        ({"weight": {"acme": -1}}, "weight of a Limit is from"),
        ({"weight": float("nan")}, "weight of a Limit is from"),
        ({"share": 0}, "share of a Limit is a whole number"),
        ({"order": "random"}, "order of a Limit is one of fair, strict"),
        ({"order": "strict", "concurrency": 2}, "has a concurrency of 1"),
        ({"name": "the-api", "weight": 2}, "apply to channels"),
        ({"name": "the-api", "order": "strict"}, "apply to channels"),
    ],
)
def test_what_channels_can_not_have_is_refused(terms, problem):
    with pytest.raises(ValueError, match=problem):
        Limit(**terms)


def test_a_window_is_that_of_the_clock_and_has_no_burst():
    with pytest.raises(ValueError, match="burst has no effect"):
        Rate(1, SECOND, 2, window=True)
    with pytest.raises(ValueError, match="retries of a Rate is True or False"):
        Rate(1, SECOND, retries=None)


def test_a_weight_is_that_of_all_channels_or_of_named_ones():
    assert Limit(weight=2).weight_of("acme") == 2
    assert [Limit(weight={"acme": 2}).weight_of(name) for name in ("acme", "other")] == [2, 1]
    assert hash(Limit(weight={"acme": 2})) == hash(Limit())


def test_a_strict_order_runs_one_at_a_time_also_where_a_limit_is_set_live():
    assert Limit(order="strict").concurrency == 1
    stored = Limit(concurrency=5, weight=3).as_json()
    assert Limit(order="strict").overridden(stored) == Limit(order="strict", weight=3)
    assert Limit(order="strict").overridden({"paused": {"by": ""}}).is_paused


def test_what_was_not_set_live_stays_as_the_code_says():
    defined = Limit(concurrency=2, rate=Rate(5, SECOND), size=9, on_full="raise", weight={"acme": 2}, share=1)
    assert defined.overridden({}) == defined
    assert defined.overridden({"weight": 3}) == replace(defined, weight=3)
    assert defined.overridden({"rate": None, "concurrency": 7}) == replace(defined, rate=None, concurrency=7)
    assert replace(defined.overridden({"paused": {"by": ""}}), concurrency=2) == defined


# Windows


WINDOW = Rate(3, timedelta(minutes=1), window=True)


def test_a_window_is_over_with_the_minute_and_all_may_start_again():
    used = after(WINDOW, None, at(59), 2)
    assert [startable(WINDOW, used, at(seconds)) for seconds in (59, 59.9, 60, 61)] == [1, 1, 3, 3]
    used = after(WINDOW, used, at(59.5), 1)
    assert (startable(WINDOW, used, at(59.9)), release_at(WINDOW, used, at(59.9))) == (0, at(60))
    assert release_at(WINDOW, used, at(61)) == at(61)


def test_a_window_that_is_changed_knows_what_has_started_in_it():
    used = after(WINDOW, None, NOW, 3)
    assert startable(Rate(5, timedelta(minutes=1), window=True), used, at(1)) == 2
    assert startable(Rate(2, timedelta(minutes=1), window=True), used, at(1)) == 0
    assert startable(Rate(3, SECOND), used, at(1)) == 3
    bucket = after(Rate(3, SECOND), None, NOW, 2)
    assert startable(WINDOW, bucket, at(1)) == 3


def test_a_clock_that_goes_back_opens_no_window_again():
    used = after(WINDOW, None, at(61), 3)
    assert startable(WINDOW, used, at(59)) == 0
    assert startable(WINDOW, after(WINDOW, used, at(59), 0), at(62)) == 0


@settings(deadline=None)
@given(st.integers(1, 9), st.timedeltas(timedelta(milliseconds=10), timedelta(hours=2)), PAUSES)
def test_in_no_window_more_start_than_its_count(count, per, pauses):
    rate, moment, bucket = Rate(count, per, window=True), NOW, None
    starts = Counter()
    for pause in pauses:
        moment += pause
        number = startable(rate, bucket, moment)
        bucket = after(rate, bucket, moment, number)
        starts[(moment - datetime(1970, 1, 1, tzinfo=UTC)) // per] += number
        assert startable(rate, bucket, release_at(rate, bucket, moment)) == count
    assert set(starts.values()) == {count}


# Token buckets


def test_a_bucket_is_full_at_first_and_fills_up_again():
    rate = Rate(2, SECOND, burst=3)
    assert startable(rate, None, NOW) == 3
    empty = after(rate, None, NOW, 3)

    assert [startable(rate, empty, at(seconds)) for seconds in (0, 0.499, 0.5, 1, 99)] == [0, 0, 1, 2, 3]
    assert release_at(rate, empty, NOW) == at(0.5)
    assert release_at(rate, empty, NOW, wanted=3) == at(1.5)


def test_a_changed_rate_counts_from_now_on():
    slow, quick = Rate(1, timedelta(hours=1)), Rate(1, SECOND)
    empty = after(slow, None, NOW, 1)

    assert release_at(slow, empty, at(1)) == at(3600)
    assert release_at(quick, empty, at(0.5)) == at(1)


def test_a_clock_that_goes_back_gives_no_token():
    rate = Rate(1, SECOND)
    used = after(rate, None, at(10), 1)
    assert startable(rate, used, at(9)) == 0
    assert after(rate, used, at(9), 0).at == at(10)


@settings(deadline=None)
@given(RATES, PAUSES)
def test_no_window_has_more_starts_than_burst_and_rate_allow(rate, pauses):
    moment, bucket, starts = NOW, None, []
    for pause in pauses:
        moment += pause
        number = startable(rate, bucket, moment)
        bucket = after(rate, bucket, moment, number)
        starts += [moment] * number
    for first, start in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = rate.size + Fraction((starts[last] - start) / SECOND) * rate.count / Fraction(rate.per / SECOND)
            assert last - first + 1 <= allowed + Fraction(1, 10**6)


@settings(deadline=None)
@given(RATES, st.integers(0, 9), st.timedeltas(timedelta(), timedelta(hours=1)))
def test_one_may_start_at_the_release_instant_and_none_well_before(rate, used, pause):
    bucket, moment = TokenBucket(rate.size - min(used, rate.size), NOW), NOW + pause
    released = release_at(rate, bucket, moment)

    assert startable(rate, bucket, released) >= 1
    assert released == moment or startable(rate, bucket, released - timedelta(microseconds=2)) == 0


def test_a_release_that_is_longer_ahead_than_times_go_is_told_again_later():
    rate = Rate(1, timedelta(days=36_500), burst=1_000_000)
    bucket = TokenBucket(0.0, NOW)
    assert NOW + timedelta(days=36_500) == release_at(rate, bucket, NOW, rate.size)


# When the last one starts


def one_by_one(rate, bucket, now, arrivals):
    """The same as `last_start`, by starting each at the first moment at which it may."""
    moment = now
    for due, number in arrivals:
        moment = max(moment, due)
        for _ in range(number):
            moment = release_at(rate, bucket, moment)
            bucket = after(rate, bucket, moment, 1)
    return moment


@settings(deadline=None)
@given(
    RATES | st.builds(Rate, st.integers(1, 9), st.timedeltas(SECOND, timedelta(hours=2)), window=st.just(True)),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 25)), min_size=1, max_size=5),
    st.integers(0, 9),
)
def test_the_last_starts_when_each_starts_as_soon_as_it_may(rate, given, started):
    arrivals = [(at(seconds), number) for seconds, number in sorted(given)]
    bucket = after(rate, None, NOW, min(started, startable(rate, None, NOW)))
    expected = one_by_one(rate, bucket, NOW, arrivals)
    found = last_start(rate, bucket, NOW, arrivals)
    assert abs((found - expected).total_seconds()) < 0.001


def test_more_than_the_bucket_holds_start_at_the_pace_of_the_rate():
    assert last_start(Rate(5, SECOND), None, NOW, [(NOW, 43_205)]) == at(8_640)
    assert last_start(WINDOW, None, NOW, [(NOW, 7), (at(90), 5)]) == at(180)
    assert last_start(Rate(5, SECOND), None, NOW, []) == NOW


@pytest.mark.parametrize("window", [True, False])
def test_what_takes_longer_than_can_be_told_is_told_as_that(window):
    rate = Rate(1, FARTHEST, window=window)
    assert last_start(rate, None, NOW, [(NOW, 2**31), (NOW, 2**31)]) == NOW + FARTHEST
