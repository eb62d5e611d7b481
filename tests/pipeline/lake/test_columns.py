"""The lake's columns are declared once for the table and once for Spark: they must agree."""

from __future__ import annotations

from delayedq.models import FinishedMessage
from delayedq.pipeline.lake.columns import ARROW, COLUMNS, MEASURED, delta_schema
from delayedq.pipeline.spark.schema import LAKE

#: They follow from `errors`.
DERIVED = {"error", "fingerprint"}


def test_spark_arrow_and_the_table_have_the_same_columns():
    assert {field.name: field.dataType.typeName() for field in LAKE} == COLUMNS
    assert LAKE.names == ARROW.names == [field.name for field in delta_schema().fields] == list(COLUMNS)
    assert set(MEASURED) < set(COLUMNS)


def test_no_column_of_the_history_is_left_out():
    """What is archived is deleted: a column that is added to the history has to get into the lake, or be derived."""
    history = {field.attname for field in FinishedMessage._meta.concrete_fields} - DERIVED - {"outcome"}
    assert history | {"state"} == set(COLUMNS) - {"schema_version", "source", "batch", "day"}
