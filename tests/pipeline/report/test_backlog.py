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


def live(state, attempts, **columns):
    """As a read of the queue has it: no live row says when its attempt began."""
    return ended(None, None, due=10, state=state, attempts=attempts, **columns)


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


def test_what_was_started_and_has_not_ended_neither_waits_nor_runs(spark):
    rows = [
        live("leased", 1, id=1),
        live("waiting", 1, id=2),  # its lease ran out
        live("waiting", 0, id=3),
        live("leased", 2, due_first=4, failures=[(1, 6, 1.0)], id=4),  # its first attempt left a record
        live("leased", 1, queue="carried", id=5) | {"scheduled_at": after(-5), "scheduled_at_initially": after(-5)},
    ]
    figures = measure(frame(spark, *rows), NOON, after(60))
    waiting = [row["waiting"] for row in figures.rows("backlog", queue="mail")]

    assert waiting == [0] * 4 + [1] + [0] * 5 + [1] * 50
    assert {row["running"] for row in figures.rows("backlog", queue="mail")} == {0, 1}
    assert sum(row["arrived"] for row in figures.rows("backlog")) == 4
    assert figures.rows("backlog", queue="carried") == []
    assert sum(row["n"] for row in figures.rows("still_open")) == 5
