"""The lake on Spark: the rows of the table as DataFrames, and the files that are written for it.

Which files count is the table's matter (`pipeline.lake.table`), which this process reads and changes. Spark reads and
writes the files, in executors or on the other side of Spark Connect: both have to reach the same place.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from delayedq.pipeline.lake.columns import PARTITIONED_BY, VERSION
from delayedq.pipeline.lake.rows import Staging
from delayedq.pipeline.lake.table import MESSAGES as DIRECTORY
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.spark.measuring import Checksums, checksums_by
from delayedq.pipeline.spark.schema import LAKE, MESSAGES
from delayedq.pipeline.spark.session import semantics

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame, SparkSession

    from delayedq.pipeline.lake.table import DataFile, Snapshot

#: The path of a file below the lake: ours, or that of an engine that has compacted the table.
_FILE = rf"/((?:{DIRECTORY}/[^/]+/)?{PARTITIONED_BY}=[^/]+/[^/]+)$"
_MICROS_OF_A_DAY = 86_400_000_000
#: Rows that become one file at most: some hundred megabytes.
_FILE_ROWS = 5_000_000


class BatchPlace(NamedTuple):
    """Where one attempt at a batch writes: no other one writes there. `source` and `number` are those of its rows."""

    source: str
    number: int
    directory: str


class Lake:
    """The lake at `path`: see LakeTable.

    staging: an empty directory that Spark and this process share, through which the files of an object store go. None:
    Spark reaches the object store.
    """

    def __init__(self, spark: SparkSession, path: str, staging: str | None = None) -> None:
        self._spark = spark
        self.table = LakeTable(path)
        self.path = self.table.path
        self._staging = Staging(staging) if staging and self.path.startswith("s3://") else None
        self._root = f"file:{staging}" if self._staging else _called(self.path)

    # Reading

    def history(
        self,
        since: date | None = None,
        until: date | None = None,
        *,
        snapshot: Snapshot | None = None,
        source: str | None = None,
        batches: Collection[int] | None = None,
    ) -> DataFrame:
        """All published messages (LAKE), or those that finished on the days (UTC) from `since` until before `until`.

        snapshot: of this version, not of the newest one. source, batches: only of this database, and of these batches.
        Raises LakeUnusable if there is no lake, or a newer delayedq has written to it.
        """
        snapshot = snapshot or self.table.snapshot()
        first, after = (None if day is None else datetime.combine(day, time(), UTC) for day in (since, until))
        files = snapshot.chosen(first, after, source=None if source is None else [source], batch=batches)
        messages = self.of(files)
        if source is not None and not all(file.holds_only("source", source) for file in files):
            messages = messages.where(F.col("source") == source)
        if batches is not None:
            messages = messages.where(F.col("batch").isin(*batches))
        messages = messages if first is None else messages.where(F.col("finished_at") >= F.lit(first))
        return messages if after is None else messages.where(F.col("finished_at") < F.lit(after))

    def of(self, files: Sequence[DataFile]) -> DataFrame:
        """The rows of these files (LAKE)."""
        if not files:
            return self._spark.createDataFrame([], LAKE)
        return self._read(*(file.path for file in files)).select(LAKE.names)

    def sums(self, files: Sequence[DataFile]) -> dict[tuple[Any, ...], Checksums]:
        """By path, database and batch: what the rows of these files add up to. A file that can't be read has none."""
        if not files:
            return {}
        rows = self.files(*(file.path for file in files), spoiled=True)
        return checksums_by(rows, "__file", "source", "batch")

    def files(self, *paths: str, spoiled: bool = False) -> DataFrame:
        """The rows of files or directories, whether they count or not: LAKE, and of each its `__file` and `__size`.

        The day is that of the directory, as readers of the table see it, whatever the zone of the session is.
        spoiled: pass over files that can't be read.
        """
        if not paths:
            return self._spark.createDataFrame([], LAKE).withColumns({"__file": F.lit(""), "__size": F.lit(0)})
        return self._read(*paths, spoiled=spoiled).select(
            *LAKE.names,
            F.regexp_extract("_metadata.file_path", _FILE, 1).alias("__file"),
            F.col("_metadata.file_size").alias("__size"),
        )

    def read(self, place: BatchPlace) -> DataFrame:
        """What was written to a place, published or not; the columns of `files`."""
        return self.files(f"{DIRECTORY}/{place.directory}")

    def _read(self, *paths: str, spoiled: bool = False) -> DataFrame:
        """With the day as a partition column: Spark opens no file of a day that the query does not want."""
        if self._staging is not None:
            self._staging.take(self.table, *paths)
        reader = self._spark.read.schema(LAKE).options(
            basePath=self._root,
            ignoreInvalidPartitionPaths="true",  # the directory of an attempt is none of a column
            ignoreCorruptFiles=str(spoiled).lower(),
        )
        return reader.parquet(*(_literal(f"{self._root}/{path}") for path in paths))

    # Writing

    def write(self, directory: str, messages: DataFrame, *, spread: bool = True) -> None:
        """Write messages (LAKE), sorted by queue and id, into a directory of their own: a few large files for each day.

        spread: False if they are where they should be written already.
        """
        messages = messages.hint("rebalance", F.col("day")) if spread else messages
        sorted_ = messages.sortWithinPartitions("day", "source", "queue", "id")
        writer = sorted_.write.partitionBy(PARTITIONED_BY).option("maxRecordsPerFile", _FILE_ROWS)
        # A file that says that the others are complete: the table does.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        with semantics(self._spark):
            writer.parquet(f"{self._root}/{DIRECTORY}/{directory}", mode="error")
        if self._staging is not None:
            self._staging.bring(self.table, f"{DIRECTORY}/{directory}")


def utc_day() -> Column:
    """The day on which a message ended, in UTC, whatever the zone of the session is."""
    return F.date_from_unix_date(F.floor(F.unix_micros("finished_at") / _MICROS_OF_A_DAY).cast("int"))


def _called(path: str) -> str:
    """As Hadoop calls it."""
    if "://" not in path:
        return f"file:{path}"
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path


def _literal(path: str) -> str:
    """A path in which Hadoop finds no pattern."""
    return re.sub(r"[][{}*?]", r"\\\g<0>", path)


def as_in_lake(messages: DataFrame, source: str | None = None, batch: int | None = None) -> DataFrame:
    """Messages (MESSAGES) with the columns that they have in the lake (LAKE)."""
    return messages.select(
        *MESSAGES.names,
        F.lit(VERSION).alias("schema_version"),
        F.lit(source).cast("string").alias("source"),
        F.lit(batch).cast("long").alias("batch"),
        utc_day().alias("day"),
    )
