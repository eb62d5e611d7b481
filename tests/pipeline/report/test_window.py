"""Windows and their buckets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.pipeline.report.facts import DAY, HOUR, Window

SINCE = datetime(2013, 3, 10, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "width"),
    [
        (timedelta(seconds=1), 1),
        (timedelta(minutes=10), 5),
        (timedelta(days=1), 900),
        (timedelta(days=30), 6 * HOUR),
        (timedelta(days=365), 7 * DAY),
        (timedelta(days=5_600), 28 * DAY),
        (timedelta(days=36_500), 224 * DAY),
    ],
)
def test_buckets_are_as_wide_as_a_chart_can_show(length, width):
    assert Window.between(SINCE, SINCE + length).width == width


def test_buckets_cover_the_window_and_begin_on_the_hour():
    window = Window.between(SINCE, SINCE + timedelta(days=8))
    buckets = window.buckets()

    assert window.width == HOUR
    assert buckets[0] == SINCE.replace(minute=0).timestamp()
    assert buckets[-1] < window.until <= buckets[-1] + HOUR
    assert len(buckets) == 8 * 24 + 1


@pytest.mark.parametrize("until", [SINCE, SINCE - timedelta(days=1)])
def test_a_window_ends_after_it_begins(until):
    with pytest.raises(ValueError, match="ends after it begins"):
        Window.between(SINCE, until)


def test_a_window_is_between_aware_times():
    with pytest.raises(ValueError, match="aware"):
        Window.between(SINCE.replace(tzinfo=None), SINCE)


@pytest.mark.parametrize(
    ("length", "period"),
    [
        (timedelta(seconds=37), 60),
        (timedelta(minutes=10), 300),
        (timedelta(minutes=119), 300),
        (timedelta(hours=2), HOUR),
    ],
)
def test_a_window_of_more_than_a_minute_holds_whole_periods(length, period):
    assert Window.between(SINCE, SINCE + length).period == period
