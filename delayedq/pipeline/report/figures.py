"""All that a report says: small tables, made of the facts that Spark counted, and the plans drawn from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from delayedq.pipeline.report import facts, tables
from delayedq.pipeline.report.capacity import Plan, Target, plans
from delayedq.pipeline.report.timing import Window, arrival, moment, timed, within

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """`tables` by name; their columns are those that `report.tables` makes."""

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

    @cached_property
    def events(self) -> dict[tuple[float, str], int]:
        """How often each event of `flow` happened, by bucket, of all queues and kinds."""
        sums = self.tables["flow"].group_by(["bucket", "event"]).aggregate([("n", "sum")]).to_pylist()
        return {(row["bucket"], row["event"]): row["n_sum"] for row in sums}

    @cached_property
    def levels(self) -> dict[float, Row]:
        """`backlog` of all queues together, by bucket, in the order of time."""
        added = ("arrived", "waiting", "running", "waiting_mean", "running_mean")
        sums: dict[float, Row] = {bucket: dict.fromkeys(added, 0) for bucket in self.window.buckets()}
        for row in self.rows("backlog"):
            for name in added:
                sums[row["bucket"]][name] += row[name]
        return sums


def measure(
    messages: DataFrame,
    since: datetime,
    until: datetime,
    *,
    target: Target = Target(),  # noqa: B008 - it is immutable
    lease: timedelta = timedelta(seconds=60),
) -> Figures:
    """Everything about a window of `messages`, which have the columns of MESSAGES or LAKE, live ones or not.

    One query of Spark, whatever the number of tables. Raises ValueError for a window that is none.

        figures = measure(spark.read.parquet("lake/..."), since, until)
        figures.overall("wait")["p95"]  # seconds
    """
    window = Window.between(since, until)
    counted = facts.counted(timed(within(messages, since, until)), window).toArrow()
    found = tables.tables(counted, window)
    offered = found["offered"].to_pylist()
    return Figures(window=window, tables=found, target=target, lease=lease, plans=plans(offered, window, target))


def span(messages: DataFrame) -> tuple[datetime, datetime] | None:
    """From the first arrival to just after the last end, in whole seconds; None if no message has ended."""
    ends = messages.where(F.col("finished_at").isNotNull()).select(
        F.unix_micros(F.min(arrival())).alias("first"), F.unix_micros(F.max("finished_at")).alias("last")
    )
    row = ends.first()
    if row is None or row["last"] is None:
        return None
    return moment(row["first"] // 1_000_000), moment(row["last"] // 1_000_000 + 1)
