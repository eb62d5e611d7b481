"""How many messages waited and ran at any time, reconstructed from history, and whether Little's law holds of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window as Frame
from pyspark.sql import functions as F

from delayedq.pipeline.report.sketches import merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from delayedq.pipeline.report.window import Window

_ENTERS, _LEAVES = ("carried", "arrived"), ("left",)
_STARTS, _STOPS = ("started",), ("stopped",)


def backlog(flow: DataFrame, window: Window) -> DataFrame:
    """Levels of each queue through the window, from `analytics.flow`; every bucket has a row.

    bucket, queue, seconds (of the bucket, within the window), arrived; `waiting` and `running` at its end, and
    `waiting_mean` and `running_mean` over its time, which are exact.
    """
    changes = flow.groupBy("bucket", "queue").agg(
        F.sum(F.when(F.col("event") == "arrived", F.col("n"))).alias("arrived"),
        *_change("waiting", _ENTERS, _LEAVES),
        *_change("running", _STARTS, _STOPS),
    )
    begins, ends = F.col("bucket"), F.col("bucket") + window.width
    seconds = F.least(ends, F.lit(window.until)) - F.greatest(begins, F.lit(window.since))
    every = _every_bucket(flow, window).join(changes, ["bucket", "queue"], "left").na.fill(0)
    return every.withColumn("seconds", seconds).select(
        "bucket", "queue", "seconds", "arrived", *_level("waiting"), *_level("running")
    )


def littles_law(backlog: DataFrame, durations: DataFrame, window: Window) -> DataFrame:
    """queue, waiting (mean number), rate (arrivals per second), wait (mean, seconds), expected (rate times wait), gap.

    By Little's law a closed window has waiting = expected. A gap (as a share of the larger) of more than a few percent
    means messages that entered or left across its ends, wrong clocks, or missing data.
    """
    levels = backlog.groupBy("queue").agg(
        (F.sum(F.col("waiting_mean") * F.col("seconds")) / window.seconds).alias("waiting"),
        (F.sum("arrived") / window.seconds).alias("rate"),
    )
    waits = merge(durations.where(F.col("measure") == "wait"), ["queue"]).groupBy("queue")
    expected = F.col("rate") * F.col("wait")
    larger = F.greatest("waiting", expected)
    gap = F.when(larger > 0, F.abs(F.col("waiting") - expected) / larger).otherwise(0.0)
    return levels.join(waits.agg((F.sum("seconds") / F.sum("n")).alias("wait")), "queue").select(
        "queue", "waiting", "rate", "wait", expected.alias("expected"), gap.alias("gap")
    )


def _change(level: str, up: tuple[str, ...], down: tuple[str, ...]) -> tuple[Column, Column]:
    sign = F.when(F.col("event").isin(*up), 1).when(F.col("event").isin(*down), -1).otherwise(0)
    return (
        F.sum(sign * F.col("n")).alias(f"{level}_change"),
        F.sum(sign * F.col("remaining")).alias(f"{level}_area"),
    )


def _level(name: str) -> tuple[Column, Column]:
    """What stood at the beginning lasts for the whole bucket; each change, for what remains of it."""
    at_end = F.sum(f"{name}_change").over(Frame.partitionBy("queue").orderBy("bucket"))
    mean = at_end - F.col(f"{name}_change") + F.col(f"{name}_area") / F.col("seconds")
    return at_end.alias(name), mean.alias(f"{name}_mean")


def _every_bucket(flow: DataFrame, window: Window) -> DataFrame:
    buckets = F.explode(F.array(*map(F.lit, window.buckets()))).alias("bucket")
    return flow.select("queue").distinct().select("queue", buckets)
