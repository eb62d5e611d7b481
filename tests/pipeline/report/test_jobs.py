"""What a report costs Spark: it is one query, and small queues need none of Spark's Python workers."""

from __future__ import annotations

import pytest

from delayedq.pipeline.report.page import write
from delayedq.pipeline.report.tables import measure, span
from tests.pipeline.jobs import jobs
from tests.pipeline.report.histories import NOON, after, ended, frame

#: The largest method that Java compiles; larger ones are interpreted, which is 10 times slower.
COMPILED = 8_000


@pytest.fixture
def messages(spark):
    return frame(spark, *(ended(n, n + 1, due=n, id=n, failures=[(1, n, 1.0)][: n % 2]) for n in range(20)), parts=2)


def test_a_report_is_three_jobs_however_many_tables_and_charts_it_has(spark, messages, tmp_path):
    """Two shuffles, which are a job each since Spark adapts the next one to them, and the result."""
    before = jobs(spark)

    figures = measure(messages, NOON, after(60))
    write(figures, tmp_path, NOON)

    assert jobs(spark) - before == 3
    assert figures.ended() == {"succeeded": 20}


def test_the_span_of_a_history_is_two_jobs(spark, messages):
    before = jobs(spark)

    assert span(messages) == (NOON, after(21))
    assert jobs(spark) - before == 2


def test_java_compiles_all_of_it(spark, messages):
    from delayedq.pipeline.report.facts import Window, counted, timed

    adaptive = "spark.sql.adaptive.enabled"
    spark.conf.set(adaptive, "false")  # else the plan has no code before it runs
    try:
        plan = counted(timed(messages), Window.between(NOON, after(60)))._jdf.queryExecution()
        stages = plan.debug().codegenToSeq()
    finally:
        spark.conf.set(adaptive, "true")

    sizes = [stages.apply(number)._3().maxMethodCodeSize() for number in range(stages.size())]
    assert len(sizes) >= 3
    assert max(sizes) < COMPILED
