"""`format("delayedq")`: the queue as a source and a sink of Spark."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from delayedq.exceptions import InvalidOption, PipelineError
from delayedq.pipeline.spark import options
from delayedq.pipeline.spark.reading import MessageReader
from delayedq.pipeline.spark.streaming import stream_reader
from delayedq.pipeline.spark.writing import MessageWriter, load_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


class DelayedQDataSource(DataSource):
    """Spark makes one wherever it plans; each option is checked there."""

    @classmethod
    def name(cls) -> str:
        return "delayedq"

    def schema(self) -> StructType:
        with _in_one_line():
            return options.columns(self.options)

    def reader(self, schema: StructType) -> MessageReader:
        with _in_one_line():
            return MessageReader(options.selection(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with _in_one_line():
            return stream_reader(options.stream_selection(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        if overwrite:
            raise InvalidOption('The queue is never overwritten: use mode("append").')
        with _in_one_line():
            writer = MessageWriter(load_options(self.options), schema)
            writer.plan()
        return writer


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Have Spark show an error of ours without the frames of the process that plans, which ends with it."""
    try:
        yield
    except PipelineError:
        if "SPARK_BUFFER_SIZE" in os.environ:  # only Spark's processes have it
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
