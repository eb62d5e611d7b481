"""Each table of a report is what DuckDB makes of the same rows by the definitions of the docs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.pipeline.report.facts import ERROR, MOST_KINDS, OTHERS
from delayedq.pipeline.report.page import capacity
from delayedq.pipeline.report.tables import measure
from delayedq.pipeline.spark.schema import LAKE
from delayedq.sql.states import FINAL_STATES, LIVE_STATES
from tests.pipeline.report.histories import ended, frame
from tests.pipeline.report.judge import KEYS, judged
from tests.pipeline.report.outcomes import DST, FIRST, RUSH, YEARS, history

WEEK = timedelta(days=7)
WINDOWS = {
    "ten years": (FIRST, FIRST + YEARS),
    **{f"hours of a week, DST in {zone.key}": (at - WEEK / 2, at + WEEK / 2) for zone, at in DST.items()},
    "minutes around DST": (min(DST.values()) - timedelta(hours=1), min(DST.values()) + timedelta(hours=2)),
    "seconds of a rush": (RUSH, RUSH + timedelta(minutes=5, seconds=20)),
}
NEAR = {"p50", "p95", "p99"}


@pytest.fixture(scope="module")
def rows():
    found = history(6_000)
    assert set(found["state"].to_pylist()) == {*FINAL_STATES, *LIVE_STATES}
    return found


@pytest.fixture(scope="module", params=WINDOWS.values(), ids=WINDOWS)
def both(request, spark, rows):
    """The figures, and the tables as DuckDB has them."""
    figures = measure(spark.createDataFrame(rows, LAKE), *request.param)
    return figures, judged(rows, figures.window)


def same(name, found, expected):
    """Are these values of the column equal? Those of a percentile may differ by ERROR."""
    if found is None or expected is None:
        return found is expected
    return found == pytest.approx(expected, rel=ERROR if name in NEAR else 1e-6, abs=1e-5)


@pytest.mark.parametrize("table", KEYS)
def test_each_row_is_the_same(both, table):
    figures, judge = both
    rows = capacity(figures.plans).to_pylist() if table == "capacity" else figures.rows(table)
    found = {tuple(row[key] for key in KEYS[table]): row for row in rows}

    assert set(found) == set(judge[table])
    assert found
    differing = [
        (key, name, found[key][name], value)
        for key, row in judge[table].items()
        for name, value in row.items()
        if name not in KEYS[table] and not same(name, found[key][name], value)
    ]
    assert differing == []


def test_there_are_tasks_without_a_name_and_threads_to_plan(both):
    figures, judge = both
    kinds = {kind for kind, *_ in judge["leases"]}

    assert len(kinds) == MOST_KINDS + 1 if OTHERS in kinds else len(kinds) < MOST_KINDS
    assert OTHERS in kinds or figures.window.seconds < 86_400
    assert judge["capacity"]["all queues",]["threads"] > 1


def test_what_still_waits_is_in_the_backlog(spark):
    waiting = ended(None, None, id=1, state="waiting", attempts=0, due=5.0)
    figures = measure(frame(spark, waiting), waiting["created_at"], waiting["created_at"] + timedelta(seconds=100))

    assert [row["waiting"] for row in figures.rows("backlog")] == [0] * 65 + [1] * 35
