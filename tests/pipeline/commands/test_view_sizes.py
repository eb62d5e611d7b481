"""What a view reads of the database, whether this process reads it or Spark."""

from __future__ import annotations

import pytest

from delayedq.pipeline.commands.view import viewed
from delayedq.pipeline.opening import Pipeline
from delayedq.pipeline.spark import reading, register
from delayedq.pipeline.spark.schema import LAKE
from tests.pipeline.given import history


@pytest.mark.parametrize("small", [True, False], ids=["read here", "read by Spark"])
def test_a_view_has_the_columns_that_it_was_asked_for_and_all_rows(spark, store, address, monkeypatch, small):
    register(spark)
    history(6)
    if not small:
        monkeypatch.setattr(reading, "SMALL_ROWS", 5)

    with viewed(Pipeline(spark, store, address, address, lambda line: None), columns=("id", "kind")) as view:
        rows = view.messages.orderBy("id").collect()
        plan = view.messages._jdf.queryExecution().toString()

    assert view.messages.columns == LAKE.names
    assert [(row.id, row.kind, row.payload) for row in rows] == [
        (n, "tests.app.tasks.remind", None) for n in range(1, 7)
    ]
    assert ("delayedq" in plan) is not small
