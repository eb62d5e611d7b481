"""The lake: plain Parquet that any reader takes, and the list of what in it counts.

    about/                                    says that this is a lake
    messages/batch=NAME-ATTEMPT/day=DAY/      what finished that day (UTC)
    manifests/batch=NAME-ATTEMPT/             published: the files of this attempt were read back, and are right

Each attempt at a batch writes to a place of its own, so a driver that goes on after it was replaced spoils nothing. A
batch counts from the moment its manifest is there, and of two attempts the later one does: no row is in two published
batches.

Everything goes through Spark, so a lake is wherever Spark can write, also on the other side of Spark Connect.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from delayedq.core.instants import instant
from delayedq.exceptions import InvalidOption, LakeUnusable
from delayedq.pipeline.spark.schema import LAKE, MESSAGES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from pyspark.sql import Column, DataFrame, Row, SparkSession

ABOUT = "delayedq history"
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
    """What two copies of the same rows have in common, whatever the order of their rows.

    digest: the sum, as a hexadecimal number, of a SHA-256 of each row over every column (LAKE): a single changed cell
    changes it. first, last: `finished_at`, in microseconds since 1970 (what Spark gives to Python as a datetime depends
    on the zone of the machine).
    """

    row_count: int
    digest: str
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
    """The lake at `path`: a URL that Spark can write to, or a directory, which may be relative to where we are.

    A URL of a file is its directory.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        if path.startswith("file:"):
            path = unquote(urlsplit(path).path)
        self.path = path.rstrip("/") if "://" in path else str(Path(path).absolute())
        if not self.path.strip("/"):
            raise InvalidOption("A lake needs a directory of its own.")

    def exists(self) -> bool:
        """Is there a lake? One that was not made to the end, whose about/ is empty, is none.

        Raises LakeUnusable if what is there says that it is something else.
        """
        about = [row.value for row in self._rows("about", "text") or []]
        if about not in ([], [ABOUT]):
            raise LakeUnusable(f"What is at {self.path} is no lake of delayedq: its about/ says something else.")
        return bool(about)

    # Reading

    def history(
        self, since: date | None = None, until: date | None = None, manifests: list[Manifest] | None = None
    ) -> DataFrame:
        """All published messages (LAKE), or those that finished on the days (UTC) from `since` until before `until`.

        manifests: of these batches only.
        Raises LakeUnusable if there is no lake, or a newer delayedq has written to it.
        """
        paths = [
            f"{self.path}/messages/{manifest.place.directory}"
            for manifest in (self.published() if manifests is None else manifests)
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

    def check(self) -> bool:
        """Is there a lake that we can write to? False: one can be made here. Raises LakeUnusable."""
        if self.exists():
            self.published()
            return True
        strangers = [row.path for row in self._files() if not _ITS_OWN.match(row.path.partition(self.path)[2])]
        if strangers:
            raise LakeUnusable(f"{self.path} is no lake: it holds {strangers[0]}. A lake begins in an empty directory.")
        return False

    def prepare(self) -> None:
        """Make a lake of an empty or missing directory; one process at a time. Raises LakeUnusable."""
        if not self.check():
            self._write([(ABOUT,)], "value string", "about", "text")

    def write(self, place: Place, messages: DataFrame) -> None:
        """Write finished messages (MESSAGES), with a few large files for each day."""
        as_in_lake(messages).hint("rebalance", F.col("day")).write.partitionBy("day").parquet(
            f"{self.path}/messages/{place.directory}", mode="error"
        )

    def clear(self, place: Place) -> None:
        """Delete all that an attempt has written and that is not published."""
        nothing = self._spark.createDataFrame([], LAKE)
        nothing.write.parquet(f"{self.path}/messages/{place.directory}", mode="overwrite")

    def publish(self, place: Place, checksums: Checksums) -> None:
        """Doing so again changes nothing."""
        days = (instant(end).date() for end in (checksums.first, checksums.last))
        manifest = (place.batch, place.attempt, VERSION, checksums.row_count, *days)
        self._write([manifest], MANIFEST, f"manifests/{place.directory}", "json")

    def withdraw(self, place: Place) -> None:
        """What was published there does not count any more."""
        self._write([], MANIFEST, f"manifests/{place.directory}", "json")

    # Parts

    def _check(self) -> None:
        if not self.exists():
            raise LakeUnusable(f"There is no lake at {self.path}.")

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
    """Those of messages as they are in the lake (LAKE), in one pass and without a shuffle."""
    digest = F.sha2(F.concat(*(_told(field) for field in LAKE.fields)), 256)
    # The first half of a SHA-256 in two numbers of 64 bits: their sums fit into a decimal up to 10^18 rows.
    halves = {
        name: F.sum(F.conv(F.substring(digest, first, 16), 16, 10).cast(DecimalType(20, 0)).cast(DecimalType(38, 0)))
        for name, first in (("high", 1), ("low", 17))
    }
    row = messages.agg(
        F.count("*").alias("row_count"),
        *(total.alias(name) for name, total in halves.items()),
        F.unix_micros(F.min("finished_at")).alias("first"),
        F.unix_micros(F.max("finished_at")).alias("last"),
    ).first()
    assert row is not None  # an aggregate of nothing is a row
    high, low = int(row.high or 0), int(row.low or 0)
    return Checksums(row.row_count, f"{high:x}.{low:x}", row.first or 0, row.last or 0)


def _told(field: StructField) -> Column:
    """A column as a text that says its length, so that no two different rows are told alike. NULL is no text."""
    column = F.unix_micros(field.name) if isinstance(field.dataType, TimestampType) else F.col(field.name)
    text = column.cast("string")
    return F.coalesce(F.concat(F.length(text).cast("string"), F.lit(":"), text), F.lit("-"))


def _present(read: Callable[[], list[Row]]) -> list[Row] | None:
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
