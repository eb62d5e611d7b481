"""The pipeline over the queue and its history, on Spark. Nothing here imports Django: executors import it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("delayedq")` known to this session. Spark starts a Python worker for it, which takes a second."""
    from delayedq.pipeline.spark.streaming import DelayedQDataSource  # PySpark takes a second to import

    spark.dataSource.register(DelayedQDataSource)
