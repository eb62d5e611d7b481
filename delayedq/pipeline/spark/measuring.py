"""Measure rows and files: checksums over every column, and the statistics by which readers choose files."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField, TimestampType

from delayedq.core.instants import instant
from delayedq.pipeline.lake.columns import MEASURED
from delayedq.pipeline.lake.table import DataFile
from delayedq.pipeline.spark.schema import LAKE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, Row


class Checksums(NamedTuple):
    """What two copies of the same rows have in common, whatever the order of their rows.

    digest: the sum, as a hexadecimal number, of a SHA-256 of each row over every column (LAKE): a single changed cell
    changes it. first, last: `finished_at`, in microseconds since 1970 (what Spark gives to Python as a datetime depends
    on the zone of the machine).
    """

    row_count: int = 0
    digest: str = "0.0"
    first: int = 0
    last: int = 0

    @classmethod
    def of(cls, row: Row) -> Self:
        """Of a row with the columns of `SUMS`."""
        return cls(row.row_count, f"{int(row.high or 0):x}.{int(row.low or 0):x}", row.first or 0, row.last or 0)

    def with_(self, other: Checksums) -> Checksums:
        """Those of both together."""
        if not (self.row_count and other.row_count):
            return self if self.row_count else other
        halves = (
            sum(int(half, 16) for half in pair)
            for pair in zip(self.digest.split("."), other.digest.split("."), strict=True)
        )
        digest = ".".join(f"{half:x}" for half in halves)
        first, last = min(self.first, other.first), max(self.last, other.last)
        return Checksums(self.row_count + other.row_count, digest, first, last)


class Measured(NamedTuple):
    """Files, and what all their rows add up to."""

    files: list[DataFile]
    checksums: Checksums


def checksums_of(messages: DataFrame) -> Checksums:
    """Those of messages as they are in the lake (LAKE), in one pass and without a shuffle."""
    row = messages.agg(*_sums()).first()
    assert row is not None  # an aggregate of nothing is a row
    return Checksums.of(row)


def checksums_by(messages: DataFrame, *columns: str) -> dict[tuple[Any, ...], Checksums]:
    """By the values of these columns."""
    rows = messages.groupBy(*columns).agg(*_sums()).collect()
    return {tuple(row[: len(columns)]): Checksums.of(row) for row in rows}


def measured(messages: DataFrame) -> Measured:
    """Read files (LAKE, `__file` and `__size`: see `Lake.files`) once: their statistics, and the checksums of all."""
    bounds = [
        function(_plain(name)).alias(f"{kind}_{name}")
        for name in MEASURED
        for kind, function in (("least", F.min), ("most", F.max), ("present", F.count))
    ]
    rows = messages.groupBy("__file", "__size", "day").agg(*_sums(), *bounds).collect()
    return Measured([_file(row) for row in rows], total(Checksums.of(row) for row in rows))


def total(parts: Iterable[Checksums]) -> Checksums:
    """Those of all together."""
    return reduce(Checksums.with_, parts, Checksums())


def _file(row: Row) -> DataFile:
    def bounds(kind: str) -> dict[str, object]:
        found = {name: row[f"{kind}_{name}"] for name in MEASURED}
        return {name: _value(name, value) for name, value in found.items() if value is not None}

    nulls = {name: row.row_count - row[f"present_{name}"] for name in MEASURED}
    return DataFile(row["__file"], row["__size"], row.row_count, row.day, bounds("least"), bounds("most"), nulls)


def _value(name: str, value: object) -> object:
    if isinstance(LAKE[name].dataType, TimestampType):
        assert isinstance(value, int)
        return instant(value)
    return value


def _sums() -> list[Column]:
    digest = F.sha2(F.concat(*(_told(field) for field in LAKE.fields)), 256)
    # The first half of a SHA-256 in two numbers of 64 bits: their sums fit into a decimal up to 10^18 rows.
    halves = [
        F.sum(F.conv(F.substring(digest, first, 16), 16, 10).cast(DecimalType(20, 0)).cast(DecimalType(38, 0))).alias(
            name
        )
        for name, first in (("high", 1), ("low", 17))
    ]
    ends = [
        F.unix_micros(function("finished_at")).alias(name) for name, function in (("first", F.min), ("last", F.max))
    ]
    return [F.count("*").alias("row_count"), *halves, *ends]


def _told(field: StructField) -> Column:
    """A column as a text that says its name and its length, so that no two different rows are told alike.

    NULL is no text: a row has the same digest before and after a column was added that it does not have.
    """
    text = _plain(field.name).cast("string")
    told = F.concat(F.lit(f"{field.name}:"), F.length(text).cast("string"), F.lit(":"), text)
    return F.coalesce(told, F.lit(""))


def _plain(name: str) -> Column:
    """A column, with times as numbers: what Spark gives as a time depends on the zone of the machine."""
    return F.unix_micros(name) if isinstance(LAKE[name].dataType, TimestampType) else F.col(name)
