"""The backlog that history gives."""

from __future__ import annotations

import pytest

from delayedq.pipeline.report import analytics
from delayedq.pipeline.report.backlog import backlog, littles_law
from delayedq.pipeline.report.timing import timed
from delayedq.pipeline.report.window import Window
from tests.pipeline.report.histories import NOON, after, ended, frame


@pytest.fixture(scope="module")
def window():
    return Window.between(NOON, after(60))


@pytest.fixture(scope="module")
def levels(spark, window):
    rows = [
        ended(10, 12, due=4, id=1),
        ended(None, 20, due=6, state="cancelled", attempts=0, id=2),  # left before it began
        ended(None, 20, due=40, state="cancelled", attempts=0, id=3),  # taken away before its time
        ended(None, 20, due=9_000, state="superseded", attempts=0, id=4),
        ended(29, 31, due=30, id=5),  # by a clock that is behind
    ]
    messages = timed(frame(spark, *rows)).cache()
    attempts = analytics.attempts(messages)
    flow = analytics.flow(messages, attempts, window)
    return backlog(flow, window), analytics.durations(messages, attempts, window)


def test_what_is_taken_away_before_its_time_never_waits(levels):
    waiting = [row["waiting"] for row in levels[0].orderBy("bucket").collect()]

    assert waiting[4:21] == [1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    assert set(waiting[:4] + waiting[21:]) == {0}


def test_the_mean_is_that_of_the_time_that_messages_waited(levels, window):
    [row] = littles_law(*levels, window).collect()

    assert row["waiting"] * window.seconds == pytest.approx(6 + 14)
    assert row["rate"] * window.seconds == 3
