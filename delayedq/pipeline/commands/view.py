"""Database and lake as one view: each message once, also while history moves from one to the other."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as is usual on Spark
from pyspark.sql.types import StructType

from delayedq.pipeline import books
from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.archive import without
from delayedq.pipeline.spark.lake import as_in_lake
from delayedq.pipeline.spark.reading import SMALL_ROWS, read_here, snapshot
from delayedq.pipeline.spark.schema import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from delayedq.pipeline.opening import Pipeline


@dataclass(frozen=True, slots=True)
class View:
    """Messages as they are in the lake (LAKE): what is in the database and not in the lake, and what is in the lake.

    `lake` is None without a lake. is_small: are they few enough for one task of Spark?
    """

    database: DataFrame
    lake: DataFrame | None = None
    is_small: bool = False

    @property
    def messages(self) -> DataFrame:
        """All of them. Those of one task need no shuffle, and a query of them is one job."""
        every = self.database if self.lake is None else self.lake.unionByName(self.database)
        return every.coalesce(1) if self.is_small else every


@contextmanager
def viewed(
    pipeline: Pipeline,
    *,
    use_lake: bool = True,
    columns: Sequence[str] = tuple(MESSAGES.names),
    since: date | None = None,
    until: date | None = None,
) -> Iterator[View]:
    """What both hold, until the end of the block. Without a lake it is the database alone.

    columns: those of MESSAGES that are read of the database; the others are NULL. since, until: what ended on the days
    (UTC) from `since` until before `until`, and what has not ended. Of both it is the same, so each message is still
    once: what is in both has one end. Only these rows of the database, and the files that may hold such, are read.

    The database is read first, as of one moment, and the lake is listed after that: what an archive has deleted by then
    was published earlier. What it publishes between the two is in both, and is left out of the database's part; what
    was restored is left out of the lake's. Which batches can't be in both is asked before all that, and again after the
    database was read: a restore may have put rows back meanwhile. Of a lake that several databases share, it is the
    rows of this one. Raises LakeUnusable.
    """
    settled = books.settled()
    with _database(pipeline, columns, since, until) as (database, is_small):
        lake = pipeline.lake if use_lake and pipeline.lake_path is not None else None
        still = books.still_settled(settled)
        if lake is None or not books.is_there(lake.table):
            yield View(database, is_small=is_small)
            return
        source, snapshot = books.source_of(pipeline.store.alias), lake.table.snapshot()
        both = books.in_both(lake.table, snapshot, source, still)
        again = [number for number, at in books.restored(both).items() if at is not None]
        history = partial(lake.history, since, until, snapshot=snapshot, source=source)
        only, published = database, history()
        if moving := [number for number in both if number not in again]:
            only = without(only, history(batches=moving))
        if again:  # the database has the newer one: it may have been changed since
            others = published.where(~F.col("batch").isin(*again))
            published = others.unionByName(without(history(batches=again), database))
        rows = sum(file.rows for file in snapshot.chosen(*_bounds(since, until), source=[source]))
        yield View(only, published, is_small and rows <= SMALL_ROWS)


def _bounds(since: date | None, until: date | None) -> tuple[datetime | None, datetime | None]:
    """When these days begin (UTC)."""
    first, after = (None if day is None else datetime.combine(day, time(), UTC) for day in (since, until))
    return first, after


@contextmanager
def _database(
    pipeline: Pipeline, columns: Sequence[str], since: date | None, until: date | None
) -> Iterator[tuple[DataFrame, bool]]:
    """The messages, live or ended on these days, as of one moment, and whether it is a small queue, which is read here.

    Of a larger one PostgreSQL holds a snapshot; of the others Spark keeps a copy.
    """
    schema = StructType([MESSAGES[name] for name in columns])
    first, after = _bounds(since, until)
    if (table := read_here(pipeline.here, schema, since=first, until=after)) is not None:
        yield _filled(pipeline.spark.createDataFrame(table, schema)), True
        return
    with snapshot(pipeline.here) as options:
        register(pipeline.spark)
        options |= {"address": pipeline.address.reference, "columns": ",".join(columns)}
        options |= {name: at.isoformat() for name, at in (("since", first), ("until", after)) if at is not None}
        messages = _filled(pipeline.spark.read.format("delayedq").options(**options).load())
        if "snapshot" in options:
            yield messages, False
            return
        kept = messages.persist()
        try:
            kept.count()
            yield kept, False
        finally:
            kept.unpersist()


def _filled(messages: DataFrame) -> DataFrame:
    """With all columns of the lake (LAKE)."""
    absent = [
        F.lit(None).cast(field.dataType).alias(field.name) for field in MESSAGES if field.name not in messages.columns
    ]
    return as_in_lake(messages.select("*", *absent))
