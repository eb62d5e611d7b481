"""`format("delayedq")`: the queue as a source and a sink of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from delayedq.exceptions import InvalidOption
from delayedq.pipeline.spark import options
from delayedq.pipeline.spark.reading import MessageReader
from delayedq.pipeline.spark.streaming import stream_reader
from delayedq.pipeline.spark.writing import MessageWriter, load_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


class DelayedQDataSource(DataSource):
    """Spark makes one wherever it plans; each option is checked there."""

    @classmethod
    def name(cls) -> str:
        return "delayedq"

    def schema(self) -> StructType:
        return options.columns(self.options)

    def reader(self, schema: StructType) -> MessageReader:
        return MessageReader(options.selection(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return stream_reader(options.stream_selection(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        if overwrite:
            raise InvalidOption('The queue is never overwritten: use mode("append").')
        writer = MessageWriter(load_options(self.options), schema)
        writer.plan()
        return writer
