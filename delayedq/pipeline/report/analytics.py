"""The figures of the report: each a function from DataFrames to a small DataFrame, whose `select` is its contract.

`messages` is what `timing.timed` makes, `attempts` what the function here makes of it. A figure counts what happened
within its window: arrivals that arrived, waits that were over, attempts and messages that ended in it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from delayedq.pipeline.report.sketches import sketch
from delayedq.pipeline.report.timing import is_live, not_negative

if TYPE_CHECKING:
    from pyspark.sql import Column

    from delayedq.pipeline.report.window import Window

#: Of `percentile_approx`, for what is rare enough to need no sketch.
_ACCURACY = 10_000

#: A period is cut into this many parts to see how bursty it was.
_PARTS = 60

_OF_MESSAGE = ("id", "queue", "kind", "state", "arrived")


def attempts(messages: DataFrame) -> DataFrame:
    """One row per attempt whose times are known: id, queue, kind, state and arrived (of its message), attempt, last
    (is it the message's last?), exception (NULL for none), began, ended, run.
    """
    unrecorded = messages.where(F.col("run").isNotNull() & ~F.col("recorded")).select(
        *_OF_MESSAGE,
        F.col("attempts").alias("attempt"),
        F.lit(True).alias("last"),
        F.lit(None).cast("string").alias("exception"),
        F.col("started").alias("began"),
        "ended",
        "run",
    )
    failed = messages.where(F.col("failures").isNotNull())
    each = failed.select(*_OF_MESSAGE, "attempts", F.explode("failures").alias("failure"))
    recorded = each.where("failure.run IS NOT NULL").select(
        *_OF_MESSAGE,
        "failure.attempt",
        (F.col("failure.attempt") == F.col("attempts")).alias("last"),
        "failure.exception",
        "failure.began",
        "failure.ended",
        "failure.run",
    )
    return unrecorded.unionByName(recorded)


# Through time


def flow(messages: DataFrame, attempts: DataFrame, window: Window) -> DataFrame:
    """What happened in each bucket: bucket, queue, kind, event, n, remaining.

    Events: `carried` (it waited when the window began), `arrived`, `left` (its wait was over), `started` and `stopped`
    (an attempt), and the state in which a message ended. `remaining` is the sum of the seconds from each event to the
    end of its bucket, which makes the areas under curves of `backlog` exact.
    """
    # Whose clock was behind began before its time.
    left = F.greatest(F.coalesce("began", "started", "ended"), "arrived")
    carried = F.when(F.col("arrived") < window.since, "carried").otherwise("arrived")
    events = [
        _events(messages.where(left.isNull() | (left >= window.since)), carried, F.col("arrived"), window),
        _events(messages.where(F.col("arrived").isNotNull() & (left >= window.since)), F.lit("left"), left, window),
        _events(messages.where(F.col("ended") >= window.since), F.col("state"), F.col("ended"), window),
        _events(attempts.where(F.col("ended") >= window.since), F.lit("started"), F.col("began"), window),
        _events(attempts.where(F.col("ended") >= window.since), F.lit("stopped"), F.col("ended"), window),
    ]
    counted = reduce(DataFrame.unionAll, events).groupBy("bucket", "queue", "kind", "event")
    return counted.agg(F.count("*").alias("n"), F.sum("remaining").alias("remaining"))


def _events(rows: DataFrame, event: Column, at: Column, window: Window) -> DataFrame:
    """What lies before the window counts at its beginning."""
    within = F.greatest(at, F.lit(window.since))
    bucket = window.bucket(within)
    return rows.where(at < window.until).select(
        bucket.alias("bucket"),
        "queue",
        "kind",
        event.alias("event"),
        (F.least(bucket + window.width, F.lit(window.until)) - within).alias("remaining"),
    )


def durations(messages: DataFrame, attempts: DataFrame, window: Window) -> DataFrame:
    """Sketches of `wait`, `run` and `turnaround`: bucket, queue, kind, measure, bin, n, seconds, longest."""
    measured = [
        _measured(messages, "wait", "began", "wait", window),
        _measured(attempts, "run", "ended", "run", window),
        _measured(messages, "turnaround", "ended", "turnaround", window),
    ]
    return sketch(reduce(DataFrame.unionAll, measured), ["bucket", "queue", "kind", "measure"])


def _measured(rows: DataFrame, measure: str, at: str, column: str, window: Window) -> DataFrame:
    known = rows.where(window.has(F.col(at)) & F.col(column).isNotNull())
    bucket = window.bucket(F.col(at)).alias("bucket")
    return known.select(bucket, "queue", "kind", F.lit(measure).alias("measure"), F.col(column).alias("seconds"))


def offered(attempts: DataFrame, window: Window) -> DataFrame:
    """The work that arrived in each period: period, queue, messages, attempts, work, squares, dispersion.

    `work` and `squares` add up the seconds, and squared seconds, that the attempts of these messages ran. `dispersion`
    is the variance over the mean of the arrivals in each sixtieth of the period: 1 for pure chance, more in bursts.
    """
    parts = min(window.period, _PARTS)
    slot = window.bucket(F.col("arrived"), window.period // parts).alias("slot")
    slots = attempts.where(window.has(F.col("arrived"))).groupBy(slot, "queue")
    counted = slots.agg(
        F.count_if("last").alias("messages"),
        F.count("*").alias("attempts"),
        F.sum("run").alias("work"),
        F.sum(F.col("run") * F.col("run")).alias("squares"),
    )
    mean = F.sum("messages") / parts
    variance = F.sum(F.col("messages") * F.col("messages")) / parts - mean * mean
    return counted.groupBy(window.bucket(F.col("slot"), window.period).alias("period"), "queue").agg(
        *(F.sum(name).alias(name) for name in ("messages", "attempts", "work", "squares")),
        F.try_divide(variance, mean).alias("dispersion"),
    )


# By task


def retries(messages: DataFrame, window: Window) -> DataFrame:
    """How messages that ended had fared: kind, state, attempts, n."""
    return messages.where(window.has(F.col("ended"))).groupBy("kind", "state", "attempts").agg(F.count("*").alias("n"))


def failures(attempts: DataFrame, window: Window) -> DataFrame:
    """What went wrong: kind, exception, attempts, messages, dead (messages that ended with it), wasted (seconds)."""
    failed = attempts.where(window.has(F.col("ended")) & F.col("exception").isNotNull())
    fatal = F.col("last") & (F.col("state") == "failed")
    return failed.groupBy("kind", "exception").agg(
        F.count("*").alias("attempts"),
        F.count_distinct("id").alias("messages"),
        F.count_if(fatal).alias("dead"),
        F.sum("run").alias("wasted"),
    )


def recoveries(messages: DataFrame, window: Window) -> DataFrame:
    """How long it took from the end of a first failure to success: kind, n, p50, p95, longest (seconds)."""
    recovered = messages.where(window.has(F.col("ended")) & (F.col("state") == "succeeded") & (F.size("failures") > 0))
    seconds = not_negative(F.col("ended") - F.get("failures", F.lit(0)).ended)
    return _spread(recovered.select("kind", seconds.alias("seconds")).dropna(), "kind")


def leases(messages: DataFrame, window: Window) -> DataFrame:
    """Attempts that ended without a record, or after their message was replaced: kind, attempts, silent, superseded,
    longest (seconds that an attempt ran).
    """
    ended = messages.where(window.has(F.col("ended")))
    return ended.groupBy("kind").agg(
        F.sum("attempts").alias("attempts"),
        F.sum("silent").alias("silent"),
        F.count_if(F.col("state") == "superseded").alias("superseded"),
        F.max("run").alias("longest"),
    )


def drift(messages: DataFrame, window: Window) -> DataFrame:
    """How late the ticks of cron schedules began: schedule, n, p50, p95, longest (seconds), cancelled, repeated.

    `cancelled` ticks were missed and never ran; `repeated` ones ran besides another of the same nominal time.
    """
    ticks = messages.where(F.col("schedule").isNotNull() & window.has(F.col("ended")))
    began = ticks.where(F.col("began").isNotNull())
    late = _spread(began.select("schedule", (F.col("began") - F.col("nominal")).alias("seconds")), "schedule")
    counted = ticks.groupBy("schedule").agg(
        F.count_if(F.col("began").isNull()).alias("cancelled"),
        (F.count("began") - F.count_distinct(F.when(F.col("began").isNotNull(), F.col("nominal")))).alias("repeated"),
    )
    return counted.join(late, "schedule", "left").select(
        "schedule", F.coalesce("n", F.lit(0)).alias("n"), "p50", "p95", "longest", "cancelled", "repeated"
    )


def still_open(messages: DataFrame, window: Window) -> DataFrame:
    """Messages that had not ended with the window, which no percentile counts: kind, state, n, due, oldest.

    `due` of them have arrived, and `oldest` is the longest that one has waited since, in seconds.
    """
    state = F.when(is_live(), F.col("state")).otherwise("ended later")
    there = messages.where(is_live() | (F.col("ended") >= window.until))
    due = F.col("arrived") < window.until
    return there.groupBy("kind", state.alias("state")).agg(
        F.count("*").alias("n"),
        F.count_if(due).alias("due"),
        F.max(F.when(due, F.lit(window.until) - F.col("arrived"))).alias("oldest"),
    )


def _spread(rows: DataFrame, by: str) -> DataFrame:
    p50, p95 = (F.percentile_approx("seconds", share, _ACCURACY) for share in (0.5, 0.95))
    return rows.groupBy(by).agg(
        F.count("*").alias("n"), p50.alias("p50"), p95.alias("p95"), F.max("seconds").alias("longest")
    )
