"""The backlog that history gives."""

from __future__ import annotations

import pytest

from delayedq.pipeline.report.tables import measure
from tests.pipeline.report.histories import NOON, after, ended, frame


@pytest.fixture(scope="module")
def figures(spark):
    rows = [
        ended(10, 12, due=4, id=1),
        ended(None, 20, due=6, state="cancelled", attempts=0, id=2),  # left before it began
        ended(None, 20, due=40, state="cancelled", attempts=0, id=3),  # taken away before its time
        ended(None, 20, due=9_000, state="superseded", attempts=0, id=4),
        ended(29, 31, due=30, id=5),  # by a clock that is behind
        ended(-3, 5.5, due=-9, id=6),  # began before the window
    ]
    return measure(frame(spark, *rows), NOON, after(60))


def test_what_is_taken_away_before_its_time_never_waits(figures):
    waiting = [row["waiting"] for row in figures.rows("backlog")]

    assert waiting[4:21] == [1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    assert set(waiting[:4] + waiting[21:]) == {0}


def test_the_mean_is_that_of_the_time_that_messages_waited(figures):
    rows = figures.rows("backlog")

    assert sum(row["waiting_mean"] * row["seconds"] for row in rows) == pytest.approx(6 + 14)
    assert sum(row["arrived"] for row in rows) == 3


def test_the_mean_of_what_ran_is_that_of_the_time_within_the_window(figures):
    rows = figures.rows("backlog")

    assert sum(row["running_mean"] * row["seconds"] for row in rows) == pytest.approx(2 + 2 + 5.5)
    assert [row["running"] for row in rows][:6] == [1, 1, 1, 1, 1, 0]


def test_those_that_never_arrived_are_counted_apart(figures):
    early = {row["state"]: row["early"] for row in figures.rows("retries")}

    assert early == {"succeeded": 0, "cancelled": 1, "superseded": 1}
