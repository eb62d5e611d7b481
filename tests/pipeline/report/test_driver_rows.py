"""What comes to the driver does not grow with the length of a history, or the number of its tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayedq.pipeline.report.facts import (
    COLUMNS,
    MOST_EXCEPTIONS,
    MOST_KINDS,
    OTHER_EXCEPTIONS,
    OTHERS,
    Window,
    counted,
    timed,
)
from delayedq.pipeline.report.tables import tables

SINCE = datetime(2013, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
MESSAGES = 40_000
#: Ten years have 131 spans of 28 days, and a year has 53 weeks.
SPANS = 131 / 53


def history(spark, years, tasks, **columns):
    """Messages all over these years, as many of each task. They wait up to 3 seconds, and run up to 4."""
    seconds = years * YEAR.total_seconds() / MESSAGES
    due = f"timestamp_micros(CAST(({SINCE.timestamp()} + id * {seconds}) * 1e6 AS BIGINT))"
    given = {
        "state": "'succeeded'",
        "queue": "'mail'",
        "kind": f"concat('app.task_', id % {tasks})",
        "attempts": "CAST(1 AS SMALLINT)",
        "created_at": due,
        "scheduled_at_initially": due,
        "scheduled_at": due,
        "started_at": f"{due} + make_interval(0, 0, 0, 0, 0, 0, id % 7 % 4)",
        "finished_at": f"{due} + make_interval(0, 0, 0, 0, 0, 0, id % 7 % 4 + id % 5)",
        "metadata": "CAST(NULL AS STRING)",
        "errors": "CAST(NULL AS STRING)",
    } | columns
    rows = spark.range(0, MESSAGES, 1, 2)
    return rows.selectExpr("id", *(f"{given[name]} AS {name}" for name in COLUMNS[1:]))


def sums(spark, years, tasks, **columns):
    window = Window.between(SINCE, SINCE + years * YEAR)
    return window, counted(timed(history(spark, years, tasks, **columns)), window).toArrow()


def test_ten_years_of_500_tasks_are_as_few_rows_as_one_year_of_50(spark):
    _, few = sums(spark, 1, 50)
    window, many = sums(spark, 10, 500)

    assert many.num_rows < SPANS * few.num_rows
    by_kind = tables(many, window)["by_kind"].to_pylist()
    assert len({row["kind"] for row in by_kind}) == MOST_KINDS + 1
    assert sum(row["n"] for row in by_kind if row["measure"] == "run") == MESSAGES
    others = [row["n"] for row in by_kind if row["measure"] == "run" and row["kind"] == OTHERS]
    assert others == [MESSAGES * (500 - MOST_KINDS) // 500]


def test_of_many_exceptions_the_most_frequent_have_rows_of_their_own(spark):
    """Of exception 7 as many die as of two others."""
    record = '[{"attempt":1,"seconds":1,"failed_at":"2013-06-01T00:00:00Z","exception":"app.Error'
    errors = f"""concat('{record}', if(id % 501 = 500, 7, id % 501), '"}}]')"""
    window, few = sums(spark, 1, 2, state="'failed'", errors=errors)

    failures = tables(few, window)["failures"].to_pylist()
    names = {row["exception"] for row in failures}
    assert len(names) == MOST_EXCEPTIONS + 1
    assert {"app.Error7", OTHER_EXCEPTIONS} < names
    assert len(failures) == 2 * len(names)
    assert sum(row["attempts"] for row in failures) == MESSAGES
