"""Limits and rates as values; token buckets and turns against what they promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.limiting import Bucket, Limit, Rate, after, in_turns, release_at, startable

NOW = datetime(2026, 3, 8, 7, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RATES = st.builds(
    Rate,
    st.integers(1, 9),
    st.timedeltas(timedelta(milliseconds=10), timedelta(hours=2)),
    st.none() | st.integers(1, 9),
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
    limit = Limit(concurrency=concurrency, rate=rate)
    assert Limit.from_json(limit.as_json()) == limit


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
    bucket, moment = Bucket(rate.size - min(used, rate.size), NOW), NOW + pause
    released = release_at(rate, bucket, moment)

    assert startable(rate, bucket, released) >= 1
    assert released == moment or startable(rate, bucket, released - timedelta(microseconds=2)) == 0


def test_a_release_that_is_longer_ahead_than_times_go_is_told_again_later():
    rate = Rate(1, timedelta(days=36_500), burst=1_000_000)
    bucket = Bucket(0.0, NOW)
    assert NOW + timedelta(days=36_500) == release_at(rate, bucket, NOW, rate.size)


# Turns


@settings(deadline=None)
@given(st.integers(0, 200), st.dictionaries(st.integers(0, 30), st.integers(0, 40)))
def test_places_are_dealt_one_by_one_and_none_is_left_that_somebody_may_take(room, most):
    dealt = in_turns(room, most)

    assert all(0 <= dealt[name] <= most[name] for name in most)
    assert sum(dealt.values()) == min(room, sum(most.values()))
    hungry = [dealt[name] for name in most if dealt[name] < most[name]]
    assert not hungry or max(hungry) - min(hungry) <= 1
    assert not hungry or all(number <= max(hungry) + 1 or number == most[name] for name, number in dealt.items())
