"""The steps of the archive: copy history before a cutoff into the lake, read the copy back, delete what it holds.

Each step may be run again at any time. Their order, and who may take them, is kept by `delayedq.pipeline.archiving`.

Only rows whose ids were read back from the lake are deleted, never "all before the cutoff": a transaction that commits
late may have ended a message before the cutoff and after the copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING

import pyarrow as pa

from delayedq.core.instants import microseconds
from delayedq.spark import register
from delayedq.spark.archive_sql import CHECKSUMS, DELETE
from delayedq.spark.connecting import Address, Connection, as_instant, connect
from delayedq.spark.lake import Checksums, Lake, Place, checksums_of
from delayedq.spark.schema import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

#: How many rows one DELETE takes: short enough for all others, long enough to be worth the trip.
DELETED_AT_ONCE = 10_000


def write(spark: SparkSession, address: Address, lake: Lake, place: Place, cutoff: datetime) -> None:
    """Copy what finished before the cutoff into its place, as of one moment."""
    lake.write(place, history(spark, address, until=cutoff))


def history(spark: SparkSession, address: Address, until: datetime) -> DataFrame:
    """The finished messages that the database holds (MESSAGES)."""
    register(spark)
    options = {"address": address.reference, "states": ",".join(FINAL_STATES), "until": until.isoformat()}
    return spark.read.format("delayedq").options(**options).load()


def verify(address: Address, lake: Lake, place: Place, cutoff: datetime) -> Checksums | None:
    """Read the copy back; its checksums if it holds what the table holds before the cutoff, else None."""
    copied = checksums_of(lake.read(place))
    with connect(address) as connection:
        return copied if copied == stored(connection, cutoff) else None


def stored(connection: Connection, cutoff: datetime) -> Checksums:
    """The checksums of what the table holds before the cutoff."""
    row = connection.rows(CHECKSUMS[connection.vendor], {"cutoff": cutoff})[0]
    ends = (0 if end is None else microseconds(as_instant(end)) for end in row[4:])
    return Checksums(*(int(value or 0) for value in row[:4]), *ends)


def delete(address: Address, lake: Lake, place: Place, cutoff: datetime) -> int:
    """Delete the rows that the files hold; returns how many were still there."""
    ids = lake.read(place).select("id")
    # SQLite has one writer at a time.
    ids = ids.coalesce(1) if address.vendor == "sqlite" else ids
    deleted = ids.mapInArrow(_Deletion(address, cutoff), "deleted long").groupBy().sum("deleted").first()
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
