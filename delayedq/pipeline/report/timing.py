"""Messages as the times they took, and the window that a report is about.

A message *arrives* when it may first start: when it was created, or at its time if that is later. It *waits* until its
first attempt begins, each attempt *runs*, and its *turnaround* lasts from its arrival to its end, retries and the
pauses between them included. A reminder that was planned a month ahead has not waited a month.

History keeps the times of the last attempt; those of earlier ones are in the records of their failures. An attempt
without any record was not settled: its worker was killed, or lost its lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from delayedq.core.limits import ERRORS_KEPT
from delayedq.pipeline.spark.schema import LIVE_STATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAILURES = "array<struct<attempt: int, failed_at: string, seconds: double, exception: string>>"

_MILLIONTHS = 1_000_000

HOUR = 3_600
DAY = 24 * HOUR

#: Widths of a bucket in seconds, of which the first that gives few enough buckets is taken.
_WIDTHS = (1, 5, 15, 60, 300, 900, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY)
_MOST = 200


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` to before `until`, in seconds since 1970 (UTC). Buckets begin at multiples of `width` seconds."""

    since: float
    until: float
    width: int

    @classmethod
    def between(cls, since: datetime, until: datetime) -> Window:
        """Raises ValueError unless `until` is later than `since`, and both are aware."""
        if since.utcoffset() is None or until.utcoffset() is None:
            raise ValueError(f"A window is between aware times, not {since} and {until}.")
        if until <= since:
            raise ValueError(f"A window ends after it begins, not from {since} to {until}.")
        seconds = (until - since).total_seconds()
        width = next((width for width in _WIDTHS if seconds / width <= _MOST), _WIDTHS[-1])
        return cls(since.timestamp(), until.timestamp(), width)

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def period(self) -> int:
        """The seconds for which load is looked at as one: an hour, or 5 minutes or 1 if the window is short."""
        return next((period for period in (HOUR, 300) if self.seconds >= 2 * period), 60)

    def length(self, begins: float) -> float:
        """The seconds of the period that lie within the window, but at least half: scraps say nothing."""
        within = min(begins + self.period, self.until) - max(begins, self.since)
        return max(within, min(self.period, self.seconds) / 2)

    def buckets(self) -> list[float]:
        """Where they begin. The first may begin before the window."""
        first, end = self.since // self.width, ceil(self.until / self.width)
        return [number * float(self.width) for number in range(int(first), end)]

    def has(self, moment: Column) -> Column:
        """Is this moment, in seconds since 1970, within the window?"""
        return (moment >= self.since) & (moment < self.until)

    def bucket(self, moment: Column, width: int | None = None) -> Column:
        """Where the bucket of this moment begins."""
        width = width or self.width
        return F.floor(moment / width) * float(width)


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


#: The columns of MESSAGES that a report reads.
COLUMNS = (
    "id", "state", "queue", "kind", "attempts", "created_at", "scheduled_at_initially", "scheduled_at", "started_at",
    "finished_at", "metadata", "errors",
)  # fmt: skip


def timed(messages: DataFrame) -> DataFrame:
    """One row per message, from the columns of MESSAGES or LAKE; moments are seconds since 1970 in UTC.

    `arrived, began (first), started (last), ended`; `wait` of the first attempt, `run` of the last, `turnaround`;
    `failures` (attempt, exception, began, ended, run; NULL for none), `recorded` (is the last attempt one of them?) and
    `silent`, the number of attempts without a record; `schedule` and `nominal` time of a cron tick. NULL is what can't
    be known, such as when the first of several attempts began if no record tells.
    """
    known = messages.select(
        "id",
        "state",
        "queue",
        "kind",
        F.col("attempts").cast("int").alias("attempts"),
        _arrived().alias("arrived"),
        _seconds("started_at").alias("started"),
        _seconds("finished_at").alias("ended"),
        _failures().alias("failures"),
        *_tick(),
    )
    run = not_negative(F.col("ended") - F.col("started"))
    known = known.withColumns({"began": _began(), "run": run, "recorded": _last_is_recorded()})
    return known.select(
        "id",
        "state",
        "queue",
        "kind",
        "attempts",
        "arrived",
        "began",
        "started",
        "ended",
        not_negative(F.col("began") - F.col("arrived")).alias("wait"),
        "run",
        not_negative(F.col("ended") - F.col("arrived")).alias("turnaround"),
        "failures",
        "recorded",
        _silent().alias("silent"),
        "schedule",
        "nominal",
    )


def within(messages: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """Those that were in the queue at some time of the window, from `since` to before `until`."""
    not_over = F.col("finished_at").isNull() | (F.col("finished_at") >= F.lit(since))
    return messages.where(not_over & (F.col("created_at") < F.lit(until)))


def is_live() -> Column:
    """Has the message not ended?"""
    return F.col("state").isin(*LIVE_STATES)


def _seconds(name: str) -> Column:
    return F.unix_micros(F.col(name)) / _MILLIONTHS


def arrival() -> Column:
    """The earliest moment at which a message can have arrived."""
    return F.greatest("created_at", F.least("scheduled_at_initially", "scheduled_at"))


def _arrived() -> Column:
    """`scheduled_at` is when the last attempt was due, or the next one is: the first, if there is no other.

    What was cancelled or replaced before its time has never arrived.
    """
    only = (F.col("attempts") <= 1) & (F.col("errors").isNull() | F.col("state").isin("succeeded", "failed"))
    due = F.when(only, F.col("scheduled_at")).otherwise(F.col("scheduled_at_initially"))
    never = F.col("started_at").isNull() & (F.col("finished_at") < due)
    return F.when(F.coalesce(~never, F.lit(True)), F.unix_micros(F.greatest("created_at", due)) / _MILLIONTHS)


def _failures() -> Column:
    """The recorded failures of charged attempts. What is no such record is as good as none."""
    records = F.from_json("errors", _FAILURES)
    charged = F.filter(
        records, lambda record: record.attempt.between(1, F.col("attempts")) & record.failed_at.isNotNull()
    )
    return F.when(F.col("errors").isNotNull(), F.transform(charged, _failure))


def _failure(record: Column) -> Column:
    ended = F.unix_micros(F.try_to_timestamp(record.failed_at)) / _MILLIONTHS
    return F.struct(
        record.attempt.alias("attempt"),
        record.exception.alias("exception"),
        (ended - record.seconds).alias("began"),
        ended.alias("ended"),
        record.seconds.alias("run"),
    )


def _tick() -> tuple[Column, Column]:
    """The cron schedule whose tick the message is, and when that said."""
    is_tick = F.col("metadata").contains('"cron"')
    nominal = F.try_to_timestamp(F.get_json_object("metadata", "$.cron.nominal_at"))
    return (
        F.when(is_tick, F.get_json_object("metadata", "$.cron.schedule")).alias("schedule"),
        F.when(is_tick, F.unix_micros(nominal) / _MILLIONTHS).alias("nominal"),
    )


def _began() -> Column:
    first = F.get(F.filter("failures", lambda failure: failure.attempt == 1), F.lit(0))
    return F.coalesce(F.when(F.col("attempts") <= 1, F.col("started")), first.began)


def _last_is_recorded() -> Column:
    return F.coalesce(F.exists("failures", lambda failure: failure.attempt == F.col("attempts")), F.lit(False))


def _silent() -> Column:
    """An attempt that succeeded or was cut short leaves no record either, and is no surprise."""
    failures = F.coalesce(F.size("failures"), F.lit(0))
    expected = (F.col("state") != "failed") & ~F.col("recorded")
    silent = F.col("attempts") - failures - expected.cast("int")
    # With ERRORS_KEPT records, earlier ones may have been dropped.
    return F.when(failures < ERRORS_KEPT, F.greatest(silent, F.lit(0))).otherwise(0)


def not_negative(seconds: Column) -> Column:
    """Hosts that measure them have clocks of their own. What is unknown stays so."""
    return F.when(seconds < 0, 0.0).otherwise(seconds)
