"""Percentiles that can be merged: how many durations fell into each bin of a logarithmic scale.

This is the DDSketch of Masson, Rim and Lee ("DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019), kept as a plain table: adding up `n` over days, queues or kinds gives the percentiles of
all of them, within ERROR of the true duration. Percentiles themselves are never averaged.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from pyspark.sql import Window as Frame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

#: A percentile is at most so far from the true one, as a share of it.
ERROR = 0.01
GROWTH = (1 + ERROR) / (1 - ERROR)

#: Seconds; what is shorter counts as this.
SHORTEST = 1e-6

PERCENTILES = (50, 95, 99)


def bin_of(seconds: Column) -> Column:
    """The number of the bin that durations of this many seconds are in."""
    return F.ceil(F.log(F.greatest(seconds, F.lit(SHORTEST))) / log(GROWTH)).cast("int")


def middle(bin_: Column) -> Column:
    """The duration, in seconds, that is within ERROR of every one in the bin."""
    return F.pow(F.lit(GROWTH), bin_) * (2 / (GROWTH + 1))


def sketch(durations: DataFrame, by: Sequence[str]) -> DataFrame:
    """From `seconds` and the columns `by` to: by, bin, n, seconds (their sum), longest."""
    binned = durations.withColumn("bin", bin_of(F.col("seconds")))
    return _added(binned, by, n=F.count("*"), seconds=F.sum("seconds"), longest=F.max("seconds"))


def merge(sketches: DataFrame, by: Sequence[str]) -> DataFrame:
    """Sketches of fewer columns: by, bin, n, seconds, longest, added up over all other columns."""
    return _added(sketches, by, n=F.sum("n"), seconds=F.sum("seconds"), longest=F.max("longest"))


def percentiles(sketches: DataFrame, by: Sequence[str]) -> DataFrame:
    """by, n, mean, p50, p95, p99, longest: all in seconds but n, the number of durations."""
    merged = merge(sketches, by)
    group = Frame.partitionBy(*by) if by else Frame.partitionBy(F.lit(0))
    ranked = merged.withColumns({"rank": F.sum("n").over(group.orderBy("bin")), "of": F.sum("n").over(group)})
    return ranked.groupBy(*by).agg(
        F.sum("n").alias("n"),
        (F.sum("seconds") / F.sum("n")).alias("mean"),
        *(_percentile(p).alias(f"p{p}") for p in PERCENTILES),
        F.max("longest").alias("longest"),
    )


def _percentile(percent: int) -> Column:
    """The middle of the first bin that reaches the rank."""
    reached = F.when(F.col("rank") * 100 >= F.col("of") * percent, F.col("bin"))
    return F.least(middle(F.min(reached)), F.max("longest"))


def _added(rows: DataFrame, by: Sequence[str], **sums: Column) -> DataFrame:
    return rows.groupBy(*by, "bin").agg(*(total.alias(name) for name, total in sums.items()))
