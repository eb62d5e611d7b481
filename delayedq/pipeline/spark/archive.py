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
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from delayedq.core.instants import instant
from delayedq.core.masking import MASKED
from delayedq.pipeline.lake.columns import VERSION
from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.archive_sql import DELETE
from delayedq.pipeline.spark.connecting import Address, connect
from delayedq.pipeline.spark.failures import READ_ERRORS, first_line
from delayedq.pipeline.spark.lake import Lake, Place, as_in_lake
from delayedq.pipeline.spark.measuring import Checksums, checksums_of, measured
from delayedq.pipeline.spark.reading import SMALL_ROWS, read_here
from delayedq.pipeline.spark.schema import FINAL_STATES, LAKE, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from delayedq.pipeline.lake.snapshot import DataFile, Snapshot

logger = logging.getLogger("delayedq")

#: Rows that one DELETE takes: few enough not to hold up others, enough to be worth the round trip.
DELETED_AT_ONCE = 10_000
#: Two rows with the same values in these are one.
_SAME = ("id", "finished_at")
#: What is masked of the messages of sensitive tasks. (In the texts of errors, secrets are masked already.)
_SECRET = ("payload", "result")


@dataclass(frozen=True, slots=True)
class Copying:
    """One attempt at a batch: what finished before the cutoff goes to its place in the lake.

    snapshot: the lake as it was when the step began. known: the batches of this database that it has published and
    whose rows the table may hold nevertheless, as after one of them was restored. A row that is there, of the same id
    and end, is not written a second time. here: the database, as this process reaches it, to read what is little.
    masked: the tasks whose arguments and results are masked in the copy.
    """

    spark: SparkSession
    address: Address
    lake: Lake
    place: Place
    cutoff: datetime
    snapshot: Snapshot
    known: Sequence[int] = ()
    here: Address | None = None
    masked: Sequence[str] = ()

    def stored(self) -> DataFrame:
        """What finished before the cutoff, as the table holds it now (LAKE)."""
        return self.stored_as(_read_here(self))

    def stored_as(self, table: pa.Table | None) -> DataFrame:
        """It, if these are its rows (MESSAGES)."""
        return as_in_lake(history(self, table), self.place.source, self.place.number)

    def before(self) -> DataFrame:
        """What other batches of this database hold (LAKE)."""
        return self.lake.history(snapshot=self.snapshot, source=self.place.source, batches=self.known)

    def copied_before(self) -> DataFrame:
        """Of `before` the rows that are copies of what is stored, as if they were of this batch (LAKE)."""
        own = {
            "schema_version": F.lit(VERSION),
            "source": F.lit(self.place.source),
            "batch": F.lit(self.place.number).cast("long"),
        }
        same = self.before().join(self.stored().select(*_SAME), [*_SAME], "left_semi")
        return same.withColumns(own).select(LAKE.names)


class Verified(NamedTuple):
    """A copy that holds what the table holds: its own files, and what they and those of other batches add up to."""

    files: list[DataFile]
    own: Checksums
    row_count: int


def write(copying: Copying) -> None:
    """Copy what finished before the cutoff into its place, as of one moment."""
    table = _read_here(copying)
    stored = copying.stored_as(table)
    if copying.known:
        stored = without(stored, copying.before())
    copying.lake.write(copying.place.directory, _in_one_task(stored, table), spread=table is None)


def _in_one_task(rows: DataFrame, table: pa.Table | None) -> DataFrame:
    """If they are so few that this process has read them: then sums of them need no shuffle."""
    return rows if table is None else rows.coalesce(1)


def without(messages: DataFrame, others: DataFrame) -> DataFrame:
    """The messages that are not among others; live ones stay."""
    return messages.join(others.select(*_SAME), [*_SAME], "left_anti")


def history(copying: Copying, table: pa.Table | None) -> DataFrame:
    """The finished messages that the database holds before the cutoff (MESSAGES). table: them, if they are read.

    What is masked in the copy is masked in them, so that both are compared alike.
    """
    if table is not None:
        return _masked(copying.spark.createDataFrame(table, MESSAGES), copying.masked)
    register(copying.spark)
    options = {
        "address": copying.address.reference,
        "states": ",".join(FINAL_STATES),
        "until": copying.cutoff.isoformat(),
    }
    return _masked(copying.spark.read.format("delayedq").options(**options).load(), copying.masked)


def _masked(messages: DataFrame, kinds: Sequence[str]) -> DataFrame:
    if not kinds:
        return messages
    is_masked = F.col("kind").isin(*kinds)
    texts = {name: F.when(is_masked & F.col(name).isNotNull(), MASKED).otherwise(F.col(name)) for name in _SECRET}
    return messages.withColumns(texts)


def _read_here(copying: Copying) -> pa.Table | None:
    """They as Arrow, if it is so little that this process reads it in less time than Spark needs to begin."""
    if copying.here is None:
        return None
    return read_here(copying.here, MESSAGES, states=FINAL_STATES, until=copying.cutoff)


def verify(copying: Copying) -> Verified | None:
    """Read the copy back; None unless each row holds what the table holds before the cutoff.

    Both sides are read whole and digested by Spark, so it is the same comparison on every store. Files that can't be
    read are no copy either.
    """
    table = _read_here(copying)
    try:
        files, own = measured(_in_one_task(copying.lake.read(copying.place), table))
        whole = own.with_(checksums_of(copying.copied_before())) if copying.known else own
    except READ_ERRORS as error:
        logger.warning("The copy at %s can't be read back: %s", copying.place.directory, first_line(error))
        return None
    stored = checksums_of(_in_one_task(copying.stored_as(table), table))
    return Verified(files, own, whole.row_count) if whole == stored else None


def is_intact(lake: Lake, place: Place) -> bool:
    """Can all of its files be read?"""
    try:
        checksums_of(lake.read(place))
    except READ_ERRORS:
        return False
    return True


def ends(copying: Copying) -> dict[int, tuple[int, datetime]]:
    """By the number of each batch of `before`: how many rows it has, and when the last of them ended."""
    grouped = copying.before().groupBy("batch").agg(F.count("*"), F.unix_micros(F.max("finished_at")))
    return {number: (count, instant(last)) for number, count, last in grouped.collect()}


def delete(copying: Copying, row_count: int) -> int:
    """Delete the rows that the lake has copies of, which are so many; returns how many were still there."""
    own = copying.lake.history(snapshot=copying.snapshot, source=copying.place.source, batches=[copying.place.number])
    ids = own.select("id")
    if copying.known:
        ids = ids.union(copying.copied_before().select("id"))
    if copying.here is not None and row_count <= SMALL_ROWS:
        deletion = _Deletion(copying.here, copying.cutoff)
        return sum(deletion.of(row.id for row in ids.collect()))
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
        for count in self.of(_ids(batches)):
            yield pa.RecordBatch.from_pydict({"deleted": pa.array([count], pa.int64())})

    def of(self, given: Iterable[int]) -> Iterator[int]:
        """How many rows each statement has deleted."""
        with connect(self.address) as connection:
            statement = DELETE[connection.vendor]
            for ids in batched(given, DELETED_AT_ONCE):
                yield connection.execute(statement, {"ids": json.dumps(ids), "cutoff": self.cutoff})


def _ids(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
