"""From files to messages: read, check every row, write. See `rows` for what becomes of a row."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delayedq.core.bounds import is_storable
from delayedq.core.instants import MICROSECOND
from delayedq.exceptions import InvalidOption
from delayedq.pipeline.spark import rows
from delayedq.pipeline.spark.schema import OFFERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from delayedq.pipeline.spark.rows import Recipe

#: By the end of a file's name.
FORMATS = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
#: How many connections write at once, at most: more would wait for each other.
WRITERS = 8
#: Names that a file's own columns don't have: where the row was, and what Spark could not read.
_FILE, _START, _POSITION, _BROKEN = "__file", "__start", "__position", "__broken"
_PLACE = (_FILE, _START, _POSITION)

#: OFFERS, the reason why a row is refused, that row, and where it was.
CHECKED = StructType(
    [
        *(StructField(field.name, field.dataType) for field in OFFERS.fields),
        StructField("reason", StringType()),
        StructField("row", StringType()),
        StructField(_FILE, StringType()),
        StructField(_START, LongType()),
        StructField(_POSITION, LongType()),
    ]
)
_ARROW = to_arrow_schema(CHECKED, timezone="UTC")


class Duplicates(StrEnum):
    """What becomes of rows that have the same key."""

    REJECT = "reject"  #: all of them are refused: which is right can't be known
    FIRST = "first"  #: all but the first
    LAST = "last"  #: all but the last


class LoadCounts(NamedTuple):
    """How many rows are good, how many are refused, and why."""

    accepted: int
    rejected: int
    #: The most frequent ones, with how many rows have it.
    reasons: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Files:
    """What is read: paths that Spark can read, all of one format. `null`: the text that stands for nothing (CSV)."""

    paths: tuple[str, ...]
    format: str
    null: str = ""
    multiline: bool = False

    @classmethod
    def of(cls, paths: Sequence[str], **options: Any) -> Files:
        """The format is that of their names. Raises InvalidOption."""
        formats = {FORMATS.get(PurePath(path.removesuffix(".gz")).suffix.lower()) for path in paths}
        if len(formats) != 1 or None in formats:
            known = ", ".join(FORMATS)
            raise InvalidOption(f"Files of one format are loaded at once, named {known} or those with .gz: {paths}.")
        return cls(tuple(paths), str(formats.pop()), **options)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows, with where they were."""
        frame = self._frame(spark)
        place = (F.col("_metadata.file_path"), F.col("_metadata.file_block_start"), F.monotonically_increasing_id())
        names = [F.col(f"`{name.replace('`', '``')}`") for name in frame.columns]
        return frame.select(*names, *(column.alias(name) for column, name in zip(place, _PLACE, strict=True)))

    def columns(self, spark: SparkSession) -> list[str]:
        """By name. Raises InvalidOption for a file that is not there."""
        try:
            frame = self._frame(spark)
            if self.format == "json":  # each line may have its own
                return sorted(row.name for row in frame.mapInArrow(_names, "name string").distinct().collect())
            return [name for name in frame.columns if name != _BROKEN]
        except AnalysisException as error:
            if error.getCondition() in {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}:
                raise InvalidOption(f"There is nothing to read at {', '.join(self.paths)}.") from None
            raise

    def identity(self, spark: SparkSession) -> str:
        """Changes when a file does: its name, size or time."""
        reader = spark.read.format("binaryFile")
        files = reader.load(list(self.paths)).select("path", "length", F.unix_micros("modificationTime")).collect()
        return hashlib.sha256(json.dumps(sorted(map(tuple, files))).encode()).hexdigest()

    def _frame(self, spark: SparkSession) -> DataFrame:
        paths = list(self.paths)
        if self.format == "parquet":
            return spark.read.parquet(*paths)
        if self.format == "json":
            return spark.read.text(paths)
        options: dict[str, Any] = {
            "header": True,
            "sep": "\t" if self.format == "tsv" else ",",
            "escape": '"',
            "nullValue": self.null,
            "multiLine": self.multiline,
        }
        names = spark.read.csv(paths[0], **options).columns
        texts = StructType([StructField(name, StringType()) for name in [*names, _BROKEN]])
        return spark.read.csv(paths, schema=texts, enforceSchema=False, columnNameOfCorruptRecord=_BROKEN, **options)


def checked(files: Files, spark: SparkSession, recipe: Recipe, duplicates: Duplicates = Duplicates.REJECT) -> DataFrame:
    """Every row, as a message or with the reason why not (CHECKED)."""
    read = files.read(spark)
    frame = read.mapInArrow(_Checks(recipe, lines=files.format == "json"), CHECKED)
    return _judged(frame, duplicates) if recipe.key else frame


def accepted(frame: DataFrame, start: datetime, spread: timedelta = timedelta()) -> DataFrame:
    """The messages (OFFERS) of checked rows.

    `spread` delays each by up to that much, and by the same however often it is computed.
    """
    rows_ = frame.where(F.col("reason").isNull())
    if spread:
        microseconds = F.pmod(F.xxhash64(*_PLACE), F.lit(spread // MICROSECOND))
        due = F.unix_micros(F.coalesce("scheduled_at", F.lit(start)))
        rows_ = rows_.withColumn("scheduled_at", F.timestamp_micros(due + microseconds))
    return rows_.select(OFFERS.names).coalesce(WRITERS)


def rejected(frame: DataFrame) -> Iterator[dict[str, str]]:
    """The refused rows and the reasons, in the order of the files; never all in memory."""
    refused = frame.where(F.col("reason").isNotNull()).orderBy(*_PLACE).select(_FILE, "reason", "row")
    for row in refused.toLocalIterator():
        yield {"file": row[0], "reason": row[1], "row": row[2]}


def counts(frame: DataFrame, reasons: int = 10) -> LoadCounts:
    """Counted in one pass over what `checked` gives; at most this many reasons."""
    by_reason = frame.groupBy("reason").count().collect()
    numbers = {row.reason: row["count"] for row in by_reason}
    good = numbers.pop(None, 0)
    most = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))[:reasons]
    return LoadCounts(good, sum(numbers.values()), most)


# Checking


@dataclass(frozen=True, slots=True)
class _Checks:
    """Runs in executors. `lines`: each row is one line of JSON."""

    recipe: Recipe
    lines: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = batch.to_pylist()
            found = [(*self._check(row), *place) for row, place in ((row, _place(row)) for row in given)]
            columns = zip(*found, strict=True) if found else [()] * len(_ARROW)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

    def _check(self, row: dict[str, Any]) -> rows.Checked:
        if self.lines:
            text = row["value"]
            parsed = _object(text)
            if parsed is None:
                return rows.refuse(text, "is not a JSON object", self.recipe)
            if not all(map(is_storable, parsed)):
                return rows.refuse(text, "has a name with a NUL or a lone surrogate", self.recipe)
            return rows.check(parsed, self.recipe)
        if broken := row.pop(_BROKEN, None):
            return rows.refuse(broken, "has not as many fields as the header", self.recipe)
        return rows.check(row, self.recipe)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.pop(name) for name in _PLACE)


def _names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The names in lines of JSON."""
    found: set[str] = set()
    for batch in batches:
        for line in batch.column("value").to_pylist():
            found.update(filter(is_storable, _object(line) or ()))
    yield pa.RecordBatch.from_arrays([pa.array(sorted(found), pa.string())], ["name"])


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _judged(frame: DataFrame, duplicates: Duplicates) -> DataFrame:
    """Give a reason to rows whose key others have."""
    same = Window.partitionBy(F.coalesce("key", F.concat(F.lit("\0"), F.col(_POSITION).cast("string"))))
    if duplicates is Duplicates.REJECT:
        refused, reason = F.count("*").over(same) > 1, "key: others have it too"
    else:
        first = duplicates is Duplicates.FIRST
        order = [F.col(name).asc() if first else F.col(name).desc() for name in _PLACE]
        refused = F.row_number().over(same.orderBy(*order)) > 1
        reason = "key: an earlier row has it" if first else "key: a later row has it"
    refused = refused & F.col("reason").isNull()
    row = F.to_json(F.struct("key", "payload", F.col("scheduled_at").cast("string").alias("scheduled_at")))
    return frame.withColumns(
        {
            "row": F.when(refused, row).otherwise(F.col("row")),
            "reason": F.when(refused, F.lit(reason)).otherwise(F.col("reason")),
        }
    )
