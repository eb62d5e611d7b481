"""The steps of the archive: copy history before a cutoff into the lake, read the copy back, delete what it holds.

Each step may be run again at any time. `delayedq.pipeline.steps.archive` keeps their order, and who may take them.

Only rows whose ids were read back from the lake are deleted, never "all before the cutoff": a transaction that commits
late may have ended a message before the cutoff and after the copy.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING

import pyarrow as pa

from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.archive_sql import DELETE
from delayedq.pipeline.spark.connecting import Address, connect
from delayedq.pipeline.spark.failures import SPARK_ERRORS, first_line
from delayedq.pipeline.spark.lake import Checksums, Lake, Place, as_in_lake, checksums_of
from delayedq.pipeline.spark.schema import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("delayedq")

#: Rows that one DELETE takes: few enough not to hold up others, enough to be worth the round trip.
DELETED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Copying:
    """One attempt at a batch: what finished before the cutoff goes to its place in the lake.

    known: what the lake has published and the database may hold nevertheless, as after it was restored. A row that is
    there, of the same id and end, is not written a second time. None: nothing of the kind.
    """

    spark: SparkSession
    address: Address
    lake: Lake
    place: Place
    cutoff: datetime
    known: DataFrame | None = None

    def stored(self) -> DataFrame:
        """What finished before the cutoff, as the table holds it now (LAKE)."""
        return as_in_lake(history(self.spark, self.address, until=self.cutoff))

    def copied(self) -> DataFrame:
        """The rows of the lake that are copies of such rows (LAKE)."""
        written = self.lake.read(self.place)
        if self.known is None:
            return written
        return written.unionByName(self.known.join(self.stored().select(*_SAME), [*_SAME], "left_semi"))


#: Two rows with the same values in these are one.
_SAME = ("id", "finished_at")


def write(copying: Copying) -> None:
    """Copy what finished before the cutoff into its place, as of one moment."""
    stored = copying.stored()
    if copying.known is not None:
        stored = without(stored, copying.known)
    copying.lake.write(copying.place, stored)


def without(messages: DataFrame, others: DataFrame) -> DataFrame:
    """The messages that are not among others; live ones stay."""
    return messages.join(others.select(*_SAME), [*_SAME], "left_anti")


def history(spark: SparkSession, address: Address, until: datetime) -> DataFrame:
    """The finished messages that the database holds (MESSAGES)."""
    register(spark)
    options = {"address": address.reference, "states": ",".join(FINAL_STATES), "until": until.isoformat()}
    return spark.read.format("delayedq").options(**options).load()


def verify(copying: Copying) -> Checksums | None:
    """Read the copy back; its checksums if each row holds what the table holds before the cutoff, else None.

    Both sides are read whole and digested by Spark, so it is the same comparison on every store. Files that can't be
    read are no copy either.
    """
    try:
        copied = checksums_of(copying.copied())
    except SPARK_ERRORS as error:
        logger.warning("The copy at %s can't be read back: %s", copying.place.directory, first_line(error))
        return None
    return copied if copied == checksums_of(copying.stored()) else None


def written(copying: Copying) -> Checksums:
    """Those of what this attempt wrote, without what was known before."""
    return checksums_of(copying.lake.read(copying.place))


def is_intact(lake: Lake, place: Place) -> bool:
    """Can all of its files be read?"""
    try:
        checksums_of(lake.read(place))
    except SPARK_ERRORS:
        return False
    return True


def delete(copying: Copying) -> int:
    """Delete the rows that the lake has copies of; returns how many were still there."""
    ids = copying.copied().select("id")
    # SQLite has one writer at a time.
    ids = ids.coalesce(1) if copying.address.vendor == "sqlite" else ids
    deletion = _Deletion(copying.address, copying.cutoff)
    deleted = ids.mapInArrow(deletion, "deleted long").groupBy().sum("deleted").first()
    return (deleted and deleted[0]) or 0


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Deletes ids as they come; runs in executors. A task that runs again finds less to do."""

    address: Address
    cutoff: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(self.address) as connection:
            statement = DELETE[connection.vendor]
            for ids in batched(_ids(batches), DELETED_AT_ONCE):
                count = connection.execute(statement, {"ids": json.dumps(ids), "cutoff": self.cutoff})
                yield pa.RecordBatch.from_pydict({"deleted": pa.array([count], pa.int64())})


def _ids(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
