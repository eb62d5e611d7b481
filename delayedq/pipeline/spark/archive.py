"""The steps of the archive: copy history before a cutoff into the lake, read the copy back, delete what it holds.

Each step may be run again at any time. `delayedq.pipeline.commands.archive` keeps their order, and who may take them.

Only rows that were read back from the lake are deleted, never "all before the cutoff": a transaction that commits late
may have ended a message before the cutoff and after the copy. The statement that deletes a row proves that all its
columns are still those that were read back; what was changed meanwhile stays, and goes with the next batch.
"""

from __future__ import annotations

import json
import logging
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import batched
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F

from delayedq.core.instants import instant
from delayedq.core.masking import MASKED
from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.columns import VERSION
from delayedq.pipeline.lake.damage import is_damaged
from delayedq.pipeline.lake.table import MESSAGES as DIRECTORY
from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.connecting import Address, connect
from delayedq.pipeline.spark.digests import SECRET, digest, digest_in_sql, masks
from delayedq.pipeline.spark.lake import BatchPlace, Lake, as_in_lake
from delayedq.pipeline.spark.measuring import Checksums, checksums_by, checksums_of, measured, total
from delayedq.pipeline.spark.reading import SMALL_ROWS, read_here
from delayedq.pipeline.spark.schema import LAKE, MESSAGES
from delayedq.pipeline.spark.session import READ_ERRORS, first_line
from delayedq.sql.states import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from delayedq.pipeline.lake.table import DataFile, Snapshot

# The SQL of the archive: the deletion of rows that are still the ones that were verified.


# `rows` is a JSON array of [id, digest, masks]. An id that was archived and is in the table again ended after the
# cutoff. Digests are compared in the statement that deletes: what was changed since it was verified is another row.

#: Deletes the rows whose digest is the one given.
DELETE = {
    "postgresql": f"""
DELETE FROM delayedq_finishedmessage AS finished
USING (
    SELECT (value->>0)::bigint AS id, value->>1 AS digest, (value->>2)::int AS masks
    FROM json_array_elements(%(rows)s::json) OFFSET 0
) AS given
WHERE finished.id = given.id AND finished.finished_at < %(cutoff)s
    AND {digest_in_sql("postgresql", "given.masks")} = given.digest
""",
    "mysql": f"""
DELETE finished
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', digest CHAR(64) CHARACTER SET utf8mb4 PATH '$[1]', masks INT PATH '$[2]'
)) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE finished.finished_at < %(cutoff)s AND {digest_in_sql("mysql", "given.masks")} = given.digest
""",
    "sqlite": f"""
DELETE FROM delayedq_finishedmessage WHERE id IN (
    SELECT finished.id
    FROM json_each(%(rows)s) AS given
    CROSS JOIN delayedq_finishedmessage AS finished ON finished.id = json_extract(given.value, '$[0]')
    WHERE finished.finished_at < %(cutoff)s
        AND {digest_in_sql("sqlite", "json_extract(given.value, '$[2]')")} = json_extract(given.value, '$[1]')
)
""",
}

#: The ids of those that are still there.
LEFT = {
    "postgresql": """
SELECT id FROM delayedq_finishedmessage
WHERE id = ANY(ARRAY(SELECT (value->>0)::bigint FROM json_array_elements(%(rows)s::json)))
    AND finished_at < %(cutoff)s
""",
    "mysql": """
SELECT finished.id
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE finished.finished_at < %(cutoff)s
""",
    "sqlite": """
SELECT id FROM delayedq_finishedmessage
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(%(rows)s)) AND finished_at < %(cutoff)s
""",
}


# Archive


logger = logging.getLogger("delayedq")

#: Rows that one DELETE takes: few enough not to hold up others, enough to be worth the round trip.
DELETED_AT_ONCE = 10_000

#: Two rows with the same values in these are one end of one message. If others of their values differ, they are two
#: versions of it, and the table has the newer one.
_SAME = ("id", "finished_at")

#: Ids that are named of those that something is said of.
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Copying:
    """One attempt at a batch: what finished before the cutoff goes to its place in the lake.

    snapshot: the lake as it was when the step began. known: the batches of this database that it has published and
    whose rows the table may hold nevertheless, as after one of them was restored, or if a row was changed while it was
    archived. A row that is there with the same values is not written a second time; one with other values is, and
    replaces the older version. here: the database, as this process reaches it, to read what is little.
    masked: the tasks whose arguments and results are masked in the copy.
    """

    spark: SparkSession
    address: Address
    lake: Lake
    place: BatchPlace
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

    def in_both(self, stored: DataFrame) -> DataFrame:
        """Of `before` the rows whose messages are stored, too (LAKE, `__file`).

        `__same`: with the same values. Such a row is a copy, and looks as if it were of this batch; another one is an
        older version. `__batch` is the one that it is of.
        """
        files = self.snapshot.chosen(source=[self.place.source], batch=self.known)
        of_database = (F.col("source") == self.place.source) & F.col("batch").isin(*self.known)
        before = _told(_of_files(self, files).where(of_database))
        both = before.join(_told(stored).select(*_SAME, F.col("__digest").alias("__stored")), [*_SAME])
        same = F.col("__digest") == F.col("__stored")
        own = {name: F.when(same, value).otherwise(F.col(name)) for name, value in self._own().items()}
        return both.withColumns({"__same": same, "__batch": F.col("batch")} | own)

    def copied_before(self) -> DataFrame:
        """Of `before` the rows that are copies of what is stored, as if they were of this batch (LAKE)."""
        return self.in_both(self.stored()).where("__same").select(LAKE.names)

    def own(self) -> DataFrame:
        """What the lake has published of the batch (LAKE)."""
        return self.lake.history(snapshot=self.snapshot, source=self.place.source, batches=[self.place.number])

    def published(self) -> int:
        """How many rows of the batch the lake has. Only files that hold rows of others, too, are read."""
        source, number = self.place.source, self.place.number
        files = self.snapshot.chosen(source=[source], batch=[number])
        own = [file for file in files if file.holds_only("source", source) and file.holds_only("batch", number)]
        shared = [file for file in files if file not in own]
        return sum(file.rows for file in own) + (self.own_of(shared).count() if shared else 0)

    def own_of(self, files: Sequence[DataFile]) -> DataFrame:
        """The part of it that these files hold (LAKE)."""
        of_batch = (F.col("source") == self.place.source) & (F.col("batch") == self.place.number)
        return self.lake.of(files).where(of_batch)

    def written(self) -> DataFrame:
        """What the place holds, published or not; the columns of `Lake.files`."""
        return self.lake.read(self.place)

    def _own(self) -> dict[str, Column]:
        return {
            "schema_version": F.lit(VERSION),
            "source": F.lit(self.place.source),
            "batch": F.lit(self.place.number).cast("long"),
        }


class Verified(NamedTuple):
    """A copy that holds what the table holds: its own files, and what they and those of other batches add up to.

    replaced: by the number of their batch, what the older versions of rows add up to; former: the files that hold them.
    """

    files: list[DataFile]
    own: Checksums
    row_count: int
    replaced: dict[int, Checksums]
    former: list[DataFile]


class Before(NamedTuple):
    """What other batches hold of what is stored: the sums of copies, and those of older versions by their batch.

    former: the paths of the files that hold older versions.
    """

    copies: Checksums = Checksums()
    replaced: dict[int, Checksums] = {}  # noqa: RUF012 - it is never changed
    former: frozenset[str] = frozenset()


class Rest(NamedTuple):
    """Files that have rows of which there are newer versions, and files with their other rows."""

    former: list[DataFile]
    files: list[DataFile]


class Deleted(NamedTuple):
    """How many rows were deleted, how many were changed since they were verified and stay, and ids of some of these."""

    rows: int = 0
    changed: int = 0
    some: tuple[int, ...] = ()

    def with_(self, other: Deleted) -> Deleted:
        """Those of both together."""
        some = (self.some + other.some)[:_NAMED]
        return Deleted(self.rows + other.rows, self.changed + other.changed, some)


def write(copying: Copying) -> None:
    """Copy what finished before the cutoff into its place, as of one moment."""
    table = _read_here(copying)
    stored = copying.stored_as(table)
    if copying.known:
        same = _told(copying.before()).select("id", "__digest")
        stored = _told(stored).join(same, ["id", "__digest"], "left_anti").select(LAKE.names)
    copying.lake.write(copying.place.directory, _in_one_task(stored, table), spread=table is None)


def _told(messages: DataFrame) -> DataFrame:
    """With the digest of each row."""
    return messages.withColumn("__digest", digest())


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
    texts = {name: F.when(is_masked & F.col(name).isNotNull(), MASKED).otherwise(F.col(name)) for name in SECRET}
    return messages.withColumns(texts)


def _read_here(copying: Copying) -> pa.Table | None:
    """They as Arrow, if it is so little that this process reads it in less time than Spark needs to begin."""
    if copying.here is None:
        return None
    return read_here(copying.here, MESSAGES, states=FINAL_STATES, until=copying.cutoff)


def verify(copying: Copying) -> Verified | None:
    """Read the copy back; None unless each row holds what the table holds before the cutoff.

    Both sides are read whole and digested by Spark, so it is the same comparison on every store. Files that are damaged
    are no copy either. Raises what Spark raises if the files can't be read for another cause.
    """
    table = _read_here(copying)
    with _held(copying, _in_one_task(copying.stored_as(table), table)) as stored:
        try:
            files, own = measured(_in_one_task(copying.written(), table))
            before = _before(copying, stored)
        except READ_ERRORS as error:
            if not is_damaged(copying.lake.table, copying.place.directory):
                raise
            logger.warning("The copy at %s can't be read back: %s", copying.place.directory, first_line(error))
            return None
        whole = own.with_(before.copies)
        if whole != checksums_of(stored):
            return None
    former = [file for file in copying.snapshot.files if file.path in before.former]
    return Verified(files, own, whole.row_count, before.replaced, former)


@contextmanager
def _held(copying: Copying, stored: DataFrame) -> Iterator[DataFrame]:
    """What is stored, as of one moment, if it is compared with new files and with older ones: on disks of executors."""
    if not copying.known:
        yield stored
        return
    stored = stored.persist(StorageLevel.DISK_ONLY)
    try:
        yield stored
    finally:
        with suppress(*READ_ERRORS):  # Spark has ended meanwhile
            stored.unpersist()


def _before(copying: Copying, stored: DataFrame) -> Before:
    """In one scan of the older files."""
    if not copying.known:
        return Before()
    sums = checksums_by(copying.in_both(stored), "__same", "__batch", "__file")
    older = {key: value for key, value in sums.items() if not key[0]}
    replaced: dict[int, Checksums] = {}
    for (_, number, _), value in older.items():
        replaced[number] = replaced.get(number, Checksums()).with_(value)
    copies = total(value for key, value in sums.items() if key[0])
    return Before(copies, replaced, frozenset(path for _, _, path in older))


def rest(copying: Copying, former: list[DataFile]) -> Rest:
    """Write these files anew, without the older versions of rows that are written. Raises LakeUnusable.

    What is written is read back, and compared with what was to be written.
    """
    newer = copying.written().select(*(F.col(name).alias(f"__newer_{name}") for name in _SAME))
    same = [F.col(name) == F.col(f"__newer_{name}") for name in _SAME]
    of_database = (F.col("source") == copying.place.source) & F.col("batch").isin(*copying.known)
    others = _of_files(copying, former).join(newer, reduce(and_, same, of_database), "left_anti").select(LAKE.names)
    directory = f"{copying.place.directory}-rest-{secrets.token_hex(4)}"
    if (expected := checksums_of(others)).row_count == 0:
        return Rest(former, [])
    copying.lake.write(directory, others)
    written = measured(copying.lake.files(f"{DIRECTORY}/{directory}"))
    if written.checksums != expected:
        raise LakeUnusable(
            f"The rows beside {sum(file.rows for file in former) - expected.row_count:,} older versions could not be "
            "read back as they were written: nothing was published. Run it again."
        )
    return Rest(former, written.files)


def _of_files(copying: Copying, files: Sequence[DataFile]) -> DataFrame:
    """Their rows (LAKE, `__file`, `__size`)."""
    return copying.lake.files(*(file.path for file in files))


def ends(copying: Copying) -> dict[int, tuple[int, datetime]]:
    """By the number of each batch of `before`: how many rows it has, and when the last of them ended."""
    grouped = copying.before().groupBy("batch").agg(F.count("*"), F.unix_micros(F.max("finished_at")))
    return {number: (count, instant(last)) for number, count, last in grouped.collect()}


def count_within(messages: DataFrame, sums: Checksums) -> int:
    """How many messages ended when those did that add up to this."""
    return messages.where(F.unix_micros("finished_at").between(sums.first, sums.last)).count()


def delete(copying: Copying, row_count: int, files: Sequence[DataFile] | None = None) -> Deleted:
    """Delete the rows that the lake has copies of, which are so many, and that are as they were read back.

    files: only the rows of the batch that these hold. Raises what Spark raises if a file can't be read.
    """
    own = copying.own() if files is None else copying.own_of(files)
    if copying.known:
        own = own.unionByName(copying.copied_before())
    rows = own.select("id", digest().alias("digest"), masks(copying.masked).alias("masks"))
    if copying.here is not None and row_count <= SMALL_ROWS:
        deletion = _Deletion(copying.here, copying.cutoff)
        return _sum(deletion.of((row.id, row.digest, row.masks) for row in rows.collect()))
    # SQLite has one writer at a time.
    rows = rows.coalesce(1) if copying.address.vendor == "sqlite" else rows
    deletion = _Deletion(copying.address, copying.cutoff)
    done = rows.mapInArrow(deletion, "rows long, changed long, some array<long>").collect()
    return _sum(Deleted(row.rows, row.changed, tuple(row.some)) for row in done)


def _sum(parts: Iterable[Deleted]) -> Deleted:
    return reduce(Deleted.with_, parts, Deleted())


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Deletes rows as they come; runs in executors. A task that runs again finds less to do."""

    address: Address
    cutoff: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = [("rows", pa.int64()), ("changed", pa.int64()), ("some", pa.list_(pa.int64()))]
        for part in self.of(_rows(batches)):
            yield pa.RecordBatch.from_pylist([part._asdict()], pa.schema(types))

    def of(self, given: Iterable[tuple[int, str, int]]) -> Iterator[Deleted]:
        """What each statement has deleted and left."""
        with connect(self.address) as connection:
            for rows in batched(given, DELETED_AT_ONCE):
                told = {"rows": json.dumps(rows), "cutoff": self.cutoff}
                count = connection.execute(DELETE[connection.vendor], told)
                left = sorted(id_ for (id_,) in connection.rows(LEFT[connection.vendor], told))
                yield Deleted(count, len(left), tuple(left[:_NAMED]))


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, str, int]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
