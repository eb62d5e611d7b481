"""All that a report says, computed on Spark and brought here: small tables, and the plans drawn from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F

from delayedq.pipeline.report import analytics
from delayedq.pipeline.report.backlog import backlog, littles_law
from delayedq.pipeline.report.capacity import Plan, Target, plans
from delayedq.pipeline.report.sketches import merge, percentiles
from delayedq.pipeline.report.timing import timed, within
from delayedq.pipeline.report.window import DAY, Window, moment

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

Row = dict[str, Any]

#: The number of tables that are fetched at once: Spark plans one while it computes another.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """`tables` by name; their columns are those of the functions that `measure` calls."""

    window: Window
    tables: dict[str, pa.Table]
    target: Target
    lease: timedelta
    plans: list[Plan] = field(default_factory=list)

    def rows(self, table: str, **where: object) -> list[Row]:
        """The rows of a table whose columns have these values."""
        rows: list[Row] = self.tables[table].to_pylist()
        return [row for row in rows if all(row[name] == value for name, value in where.items())]

    def overall(self, measure: str) -> Row | None:
        """Percentiles of all queues and kinds."""
        return next(iter(self.rows("overall", measure=measure)), None)

    def ended(self) -> dict[str, int]:
        """How many messages ended in each state."""
        counts: dict[str, int] = {}
        for row in self.rows("retries"):
            counts[row["state"]] = counts.get(row["state"], 0) + row["n"]
        return counts


def measure(
    messages: DataFrame,
    since: datetime,
    until: datetime,
    *,
    target: Target = Target(),  # noqa: B008 - it is immutable
    lease: timedelta = timedelta(seconds=60),
) -> Figures:
    """Everything about a window of `messages`, which have the columns of MESSAGES or LAKE, live ones or not.

    Raises ValueError for a window that is none.
    """
    window = Window.between(since, until)
    with ExitStack() as kept, ThreadPoolExecutor(_AT_ONCE) as pool:
        tables = _tables(messages, window, kept)
        fetched = dict(zip(tables, pool.map(methodcaller("toArrow"), tables.values()), strict=True))
    return Figures(
        window=window,
        tables=fetched,
        target=target,
        lease=lease,
        plans=plans(fetched["offered"].to_pylist(), window, target),
    )


def span(messages: DataFrame) -> tuple[datetime, datetime] | None:
    """From the first arrival to just after the last end, in whole seconds; None if no message has ended."""
    arrived = F.greatest("created_at", F.least("scheduled_at_initially", "scheduled_at"))
    ends = messages.where(F.col("finished_at").isNotNull()).select(
        F.unix_micros(F.min(arrived)).alias("first"), F.unix_micros(F.max("finished_at")).alias("last")
    )
    row = ends.first()
    if row is None or row["last"] is None:
        return None
    return moment(row["first"] // 1_000_000), moment(row["last"] // 1_000_000 + 1)


def _tables(messages: DataFrame, window: Window, kept: ExitStack) -> dict[str, DataFrame]:
    """What several of them are made of is computed once: columns of many rows, and a few rows that forget their plan.

    Otherwise Spark would plan all that they came from again with each table, for longer than it computes.
    """
    known = timed(within(messages, moment(window.since), moment(window.until))).persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(known.unpersist)
    attempts = analytics.attempts(known)
    durations = analytics.durations(known, attempts, window).localCheckpoint()
    flow = analytics.flow(known, attempts, window).localCheckpoint()
    levels = backlog(flow, window)
    daily = durations.withColumn("day", window.bucket(F.col("bucket"), DAY))
    return {
        "flow": flow,
        "backlog": levels,
        "littles_law": littles_law(levels, durations, window),
        "overall": percentiles(durations, ["measure"]),
        "by_time": percentiles(durations, ["measure", "bucket"]),
        "by_kind": percentiles(durations, ["measure", "kind"]),
        "distribution": merge(durations, ["measure"]),
        "sketches": merge(daily, ["day", "queue", "kind", "measure"]),
        "offered": analytics.offered(attempts, window),
        "retries": analytics.retries(known, window),
        "failures": analytics.failures(attempts, window),
        "recoveries": analytics.recoveries(known, window),
        "leases": analytics.leases(known, window),
        "drift": analytics.drift(known, window),
        "still_open": analytics.still_open(known, window),
    }
