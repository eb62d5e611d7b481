"""When a backlog will be empty, and how sure that is."""

from __future__ import annotations

import pytest

from delayedq.core.outlook import Trend, outlook

TEN = 10


@pytest.mark.parametrize(
    ("due", "ended", "came", "trend"),
    [
        (0, [0] * TEN, [5] * TEN, Trend.EMPTY),
        (600, [70] * TEN, [10] * TEN, Trend.SHRINKS),
        (600, [10] * TEN, [10] * TEN, Trend.STAYS),
        (600, [10] * TEN, [70] * TEN, Trend.STAYS),
        (600, [0] * TEN, [0] * TEN, Trend.STAYS),
        (600, [0, 100] * 5, [30] * TEN, Trend.UNSURE),
        (600, [60, 62] * 5, [0] * TEN, Trend.SHRINKS),
    ],
)
def test_what_a_backlog_does(due, ended, came, trend):
    assert outlook(due, ended, came, 60.0).trend == trend


def test_steady_rates_are_sure_and_uneven_ones_are_not():
    steady = outlook(600, [60] * TEN, [0] * TEN, 60.0)
    assert steady.earliest == steady.about == steady.latest == 600.0
    uneven = outlook(600, [50, 70] * 5, [0] * TEN, 60.0)
    assert uneven.about == 600.0
    assert 500 < uneven.earliest < 600 < uneven.latest < 700


def test_what_is_unsure_still_has_a_moment_before_which_it_is_not_empty():
    found = outlook(600, [0, 100] * 5, [30] * TEN, 60.0)
    assert found.about is found.latest is None
    assert found.earliest > 600
