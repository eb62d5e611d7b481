"""The lake: plain Parquet that any reader takes, and the list of what in it counts.

    about/                                    says that this is a lake
    messages/batch=NAME-ATTEMPT/day=DAY/      what finished that day (UTC)
    manifests/batch=NAME-ATTEMPT/             published: the files of this attempt were read back, and are right

Each attempt at a batch writes to a place of its own, so one that was believed dead harms nobody. A batch counts from
the moment its manifest is there, and of two attempts the later one does: no row is in two published batches.

Everything goes through Spark, so a lake is wherever Spark can write, also on the other side of Spark Connect.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DecimalType, IntegerType, LongType, StringType, StructField, StructType

from delayedq.core.instants import instant
from delayedq.exceptions import InvalidOption, LakeUnusable
from delayedq.spark.schema import LAKE, MESSAGES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from pyspark.sql import DataFrame, Row, SparkSession

ABOUT = "delayedq history"
_TEXTS = ("queue", "kind", "key", "worker", "state", "payload", "metadata", "result", "errors")
_ITS_OWN = re.compile(r"/(about|messages|manifests)/")

MANIFEST = StructType(
    [
        StructField("batch", StringType()),
        StructField("attempt", IntegerType()),
        StructField("schema_version", IntegerType()),
        StructField("row_count", LongType()),
        StructField("first_day", DateType()),
        StructField("last_day", DateType()),
    ]
)


class Checksums(NamedTuple):
    """What two copies of the same rows have in common, cheap to compute in any engine.

    ids, attempts: their sums. characters: in all texts of all rows. first, last: `finished_at`, in microseconds since
    1970 (what Spark gives to Python as a datetime depends on the zone of the machine).
    """

    row_count: int
    ids: int
    attempts: int
    characters: int
    first: int
    last: int


class Place(NamedTuple):
    """Where one attempt at a batch writes."""

    batch: str
    attempt: int

    @property
    def directory(self) -> str:
        return f"batch={self.batch}-{self.attempt}"


class Manifest(NamedTuple):
    """What was published of a batch."""

    place: Place
    schema_version: int
    row_count: int
    first_day: date
    last_day: date

    @classmethod
    def of(cls, row: Row) -> Self:
        place = Place(row.batch, row.attempt)
        return cls(place, row.schema_version, row.row_count, row.first_day, row.last_day)


class Lake:
    """The lake at `path`: a URL that Spark can write to, or a directory, which may be relative to where we are."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path.rstrip("/") if "://" in path else str(Path(path).absolute())
        if not self.path.strip("/"):
            raise InvalidOption("A lake needs a directory of its own.")

    # Reading

    def history(self, since: date | None = None, until: date | None = None) -> DataFrame:
        """All published messages (LAKE), or those that finished on the days (UTC) from `since` until before `until`.

        Raises LakeUnusable if there is no lake, or a newer delayedq has written to it.
        """
        paths = [
            f"{self.path}/messages/{manifest.place.directory}"
            for manifest in self.published()
            if (since is None or manifest.last_day >= since) and (until is None or manifest.first_day < until)
        ]
        if not paths:
            return self._spark.createDataFrame([], LAKE)
        reader = self._spark.read.schema(LAKE).option("basePath", f"{self.path}/messages")
        messages = reader.parquet(*paths).select(LAKE.names)
        messages = messages if since is None else messages.where(F.col("day") >= F.lit(since))
        return messages if until is None else messages.where(F.col("day") < F.lit(until))

    def published(self) -> list[Manifest]:
        """The batches that count, by name. Raises LakeUnusable."""
        self._check()
        rows = self._rows("manifests") or []
        latest = {row.batch: row for row in sorted(rows, key=lambda row: row.attempt)}
        manifests = [Manifest.of(latest[batch]) for batch in sorted(latest)]
        newest = max((manifest.schema_version for manifest in manifests), default=VERSION)
        if newest > VERSION:
            raise LakeUnusable(
                f"The lake at {self.path} holds schema version {newest}; this delayedq reads up to {VERSION}."
            )
        return manifests

    def read(self, place: Place) -> DataFrame:
        """What was written to a place, published or not."""
        return self._spark.read.schema(LAKE).parquet(f"{self.path}/messages/{place.directory}")

    # Writing

    def prepare(self) -> None:
        """Make a lake of an empty or missing directory. Raises LakeUnusable if it holds something else."""
        if self._rows("about", "text") is not None:
            self.published()
            return
        strangers = [row.path for row in self._files() if not _ITS_OWN.match(row.path.partition(self.path)[2])]
        if strangers:
            raise LakeUnusable(f"{self.path} is no lake: it holds {strangers[0]}. A lake begins in an empty directory.")
        self._write([(ABOUT,)], "value string", "about", "text")

    def write(self, place: Place, messages: DataFrame) -> None:
        """Write finished messages (MESSAGES), with a few large files for each day."""
        as_in_lake(messages).hint("rebalance", F.col("day")).write.partitionBy("day").parquet(
            f"{self.path}/messages/{place.directory}", mode="error"
        )

    def clear(self, place: Place) -> None:
        """Leave nothing of what an attempt has written; nobody has published it."""
        nothing = self._spark.createDataFrame([], LAKE)
        nothing.write.parquet(f"{self.path}/messages/{place.directory}", mode="overwrite")

    def publish(self, place: Place, checksums: Checksums) -> None:
        """Doing so again changes nothing."""
        days = (instant(end).date() for end in (checksums.first, checksums.last))
        manifest = (place.batch, place.attempt, VERSION, checksums.row_count, *days)
        self._write([manifest], MANIFEST, f"manifests/{place.directory}", "json")

    # Parts

    def _check(self) -> None:
        about = self._rows("about", "text")
        if about is None:
            raise LakeUnusable(f"There is no lake at {self.path}.")
        if [row.value for row in about] != [ABOUT]:
            raise LakeUnusable(f"What is at {self.path} is no lake of delayedq: its about/ says something else.")

    def _rows(self, part: str, format_: str = "json") -> list[Row] | None:
        """None if it is not there."""
        reader = self._spark.read.option("recursiveFileLookup", "true").format(format_)
        reader = reader.schema(MANIFEST) if format_ == "json" else reader
        return _present(lambda: reader.load(f"{self.path}/{part}").collect())

    def _files(self) -> list[Row]:
        """All files of the directory, without what is in them."""
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        return _present(lambda: reader.load(self.path).select("path").collect()) or []

    def _write(self, rows: list[tuple[object, ...]], schema: StructType | str, part: str, format_: str) -> None:
        frame = self._spark.createDataFrame(rows, schema).coalesce(1)
        frame.write.format(format_).mode("overwrite").save(f"{self.path}/{part}")


def as_in_lake(messages: DataFrame) -> DataFrame:
    """Messages (MESSAGES) with the columns that they have in the lake (LAKE)."""
    days = F.to_date("finished_at").alias("day")
    return messages.select(*MESSAGES.names, F.lit(VERSION).alias("schema_version"), days)


def checksums_of(messages: DataFrame) -> Checksums:
    """Those of finished messages (MESSAGES), in one pass."""
    characters = sum((F.coalesce(F.length(name), F.lit(0)) for name in _TEXTS), F.lit(0).cast("long"))
    # Ids may add up to more than 64 bits hold.
    total = F.sum(F.col("id").cast(DecimalType(38, 0)))
    row = messages.agg(
        F.count("*").alias("row_count"),
        total.alias("ids"),
        F.sum("attempts").alias("attempts"),
        F.sum(characters).alias("characters"),
        F.unix_micros(F.min("finished_at")).alias("first"),
        F.unix_micros(F.max("finished_at")).alias("last"),
    ).first()
    assert row is not None  # an aggregate of nothing is a row
    return Checksums(*(int(row[name] or 0) for name in Checksums._fields))


def _present(read: Callable[[], list[Row]]) -> list[Row] | None:
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
