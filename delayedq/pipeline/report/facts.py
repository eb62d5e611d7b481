"""Count the facts of a report, in one pass of Spark over the messages.

Each message becomes a few *facts*: rows with the same columns, whose `figure` says what they are of. They are added up
by their keys, and the sums, which are few, become those of every table and are added up once more. So a report is one
query with two shuffles, however many tables it has, and no message is read, parsed or kept twice. What comes to the
driver is what tables and charts show: its size does not depend on the length of the window, nor on the number of tasks
or exceptions.

Percentiles come from sketches: how many durations fell into each bin of a logarithmic scale. This is the DDSketch of
Masson, Rim and Lee ("DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019),
kept as a plain table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil, log
from typing import TYPE_CHECKING

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from delayedq.core.bounds import ERRORS_KEPT
from delayedq.sql.states import LIVE_STATES
from delayedq.sql.waits import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

# Messages as the times they took, and the window that a report is about.
#
# A message *arrives* when it may first start: when it was created, or at its time if that is later. It *waits* until
# its first attempt begins, each attempt *runs*, and its *turnaround* lasts from its arrival to its end, retries and
# the pauses between them included. A reminder that was planned a month ahead has not waited a month. What was moved
# to a later time after its start, as what people decide, arrived at its first time, and its wait is not known: the
# definition is that of `sql.waits`, as on the pages of the admin.
#
# History keeps the times of the last attempt; those of earlier ones are in the records of their failures. An attempt
# without any record was not settled: its worker was killed, or lost its lease. A live message that was started and has
# no record runs, or has lost its worker: nothing tells since when, and it counts as one that did not wait.


_FAILURES = "array<struct<attempt: int, failed_at: string, seconds: double, exception: string>>"

_MILLIONTHS = 1_000_000

HOUR = 3_600

DAY = 24 * HOUR

#: Widths of a bucket in seconds, of which the first that gives few enough buckets is taken.
_WIDTHS = (1, 5, 15, 60, 300, 900, HOUR, 6 * HOUR, DAY, 7 * DAY, *(28 * DAY * 2**n for n in range(12)))

_MOST = 200

#: Threads are planned by the last year of a window: what arrived in each hour of ten years is too much to look at.
_RECENT = 366 * DAY


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

    @property
    def recent(self) -> Window:
        """Its last year, or all of it: the loads of this time are looked at."""
        return replace(self, since=max(self.since, self.until - _RECENT))

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
        _moved().alias("moved"),
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
        F.when(~F.col("moved"), _waited(F.col("began") - F.col("arrived"))).alias("wait"),
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
    due = F.when(_is_only() & ~_moved(), F.col("scheduled_at")).otherwise(F.col("scheduled_at_initially"))
    never = F.col("started_at").isNull() & (F.col("finished_at") < due)
    return F.when(F.coalesce(~never, F.lit(True)), F.unix_micros(F.greatest("created_at", due)) / _MILLIONTHS)


def _is_only() -> Column:
    """Has it no other attempt, so that it was due for this one?"""
    return (F.col("attempts") <= 1) & (F.col("errors").isNull() | F.col("state").isin("succeeded", "failed"))


def _moved() -> Column:
    """Was it moved to a later time after its only attempt had started?"""
    before = F.coalesce(_seconds("started_at") - _seconds("scheduled_at") < -CLOCKS, F.lit(False))
    return _is_only() & before


def _waited(seconds: Column) -> Column:
    """The definition of `sql.waits`."""
    return F.when(seconds >= -CLOCKS, not_negative(seconds))


def _failures() -> Column:
    """The recorded failures of charged attempts. What is no such record is as good as none."""
    records = F.from_json("errors", _FAILURES)
    charged = F.filter(
        records, lambda record: record.attempt.between(1, F.col("attempts")) & record.failed_at.isNotNull()
    )
    return F.when(F.col("errors").isNotNull(), F.transform(charged, _failure))


#: No attempt takes longer, in seconds: what says so was not written by a worker.
_LONGEST = 100 * _RECENT


def _failure(record: Column) -> Column:
    # Infinite, or no number: neither has a bin of a sketch.
    seconds = F.when(record.seconds.between(0, _LONGEST), record.seconds)
    ended = F.unix_micros(F.try_to_timestamp(record.failed_at)) / _MILLIONTHS
    return F.struct(
        record.attempt.alias("attempt"),
        record.exception.alias("exception"),
        (ended - seconds).alias("began"),
        ended.alias("ended"),
        seconds.alias("run"),
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


# Facts


#: A percentile is at most so far from the true one, as a share of it.
ERROR = 0.01

GROWTH = (1 + ERROR) / (1 - ERROR)

#: Seconds; what is shorter counts as this.
SHORTEST = 1e-6

#: So many kinds have rows of their own: those with the most messages.
MOST_KINDS = 50

#: What all other kinds together are called.
OTHERS = "other tasks"

#: The same of exceptions: those of which most attempts failed.
MOST_EXCEPTIONS = 50

OTHER_EXCEPTIONS = "other exceptions"

#: A period is cut into this many parts to see how bursty it was.
PARTS = 60

#: What facts are added up by. `at`: where a bucket of time begins, in seconds since 1970. `label`: a state, a measure,
#: an exception or a schedule; `number`: of attempts; `bin`: of the sketch. NULL where a figure has none.
KEYS = {
    "figure": "string", "at": "double", "queue": "string", "kind": "string", "label": "string", "number": "int",
    "bin": "int",
}  # fmt: skip

#: What is added up. `area`: seconds from an event to the end of its bucket; `squares`: of the seconds; `marked` and
#: `also`: how many have something that the figure asks for; `longest` is no sum.
VALUES = {
    "n": "bigint", "area": "double", "seconds": "double", "squares": "double", "marked": "bigint", "also": "bigint",
    "longest": "double",
}  # fmt: skip

#: What happens to a message, or with an attempt of it.
_EVENTS = ("carried", "arrived", "left", "started", "stopped", "ended")

#: By the event that ends it: the measure whose sketch it adds to.
_MEASURES = {"left": "wait", "stopped": "run", "ended": "turnaround"}

_SKETCHED = (*_MEASURES, "recoveries", "late")


def counted(messages: DataFrame, window: Window) -> DataFrame:
    """The facts of every table, added up: KEYS and VALUES. `messages` is what `timed` makes.

    A figure counts what happened within the window: arrivals that arrived, waits that were over, attempts and messages
    that ended in it.
    """
    facts = _added(_placed(_exploded(_attempts(messages), _facts(window), "queue", "kind"), window))
    return _added(_of_few_names(_added(_exploded(facts, _of_tables(window)))))


def bin_of(seconds: Column) -> Column:
    """The number of the bin that durations of this many seconds are in."""
    scale = F.log(F.greatest(seconds, F.lit(SHORTEST))) / log(GROWTH)
    return F.when(seconds.isNotNull(), F.ceil(scale).cast("int"))  # greatest() passes over NULL


def _attempts(messages: DataFrame) -> DataFrame:
    """A row for each message, with its last attempt if no record tells of that, and one for each recorded failure.

    `whole`: is it the row of the message? `attempt_began, attempt_ended, run, exception`: of the attempt; `run` is NULL
    if there is none, or its times are unknown. `is_last`: is it the message's last? `again`: did an earlier attempt of
    the message fail of the same exception?
    """
    failures, failure, whole = F.col("failures"), F.col("failure"), F.col("failure").isNull()
    none = F.array(F.get(failures, F.lit(-1)))
    rows = messages.withColumns(
        {
            "first_failed": F.get(failures, F.lit(0)).ended,
            "failure": F.explode(F.coalesce(F.concat(none, failures), none)),
        }
    )
    earlier = F.filter(failures, lambda other: other.attempt < failure.attempt)
    begun = F.when(is_live() & (F.col("attempts") > 0), F.col("arrived"))
    left = F.coalesce("began", "started", "ended", begun)
    return rows.withColumns(
        {
            "whole": whole,
            "attempt_began": F.when(whole, F.col("started")).otherwise(failure.began),
            "attempt_ended": F.when(whole, F.col("ended")).otherwise(failure.ended),
            "run": F.when(~whole, failure.run).when(~F.col("recorded"), F.col("run")),
            "is_last": whole | (failure.attempt == F.col("attempts")),
            "exception": failure.exception,
            "again": F.when(~whole, F.exists(earlier, lambda other: other.exception == failure.exception)),
            # Whose clock was behind began before its time. greatest() passes over NULL: what still waits has not left.
            "left": F.when(left.isNotNull(), F.greatest(left, F.col("arrived"))),
            "late": not_negative(F.col("began") - F.col("nominal")),
        }
    )


def _facts(window: Window) -> list[Column]:
    """What a row of `_attempts` adds to, where it does.

    Few columns and no calculation: `_placed` does these once for all. Java does not compile a method of more than 8,000
    bytes, and Spark makes one method of this.
    """
    whole, arrived, ended, run, left = (F.col(name) for name in ("whole", "arrived", "ended", "run", "left"))
    attempt_began, attempt_ended, state = F.col("attempt_began"), F.col("attempt_ended"), F.col("state")
    ran = run.isNotNull() & (attempt_ended >= window.since)
    over = F.when(
        whole & window.has(ended),
        _fact(
            F.lit("ended"), ended, label=state, number=F.col("attempts"), seconds=F.col("turnaround"),
            marked=arrived.isNull(),
        ),
    ).when(whole & (is_live() | (ended >= window.until)), _open(window))  # fmt: skip
    return [
        F.when(
            whole & (arrived < window.until) & (left.isNull() | (left >= window.since)),
            _fact(F.when(arrived < window.since, F.lit("carried")).otherwise(F.lit("arrived")), arrived),
        ),
        F.when(whole & arrived.isNotNull() & window.has(left), _fact(F.lit("left"), left, seconds=F.col("wait"))),
        F.when(ran & (attempt_began < window.until), _fact(F.lit("started"), attempt_began)),
        F.when(ran & (attempt_ended < window.until), _fact(F.lit("stopped"), attempt_ended, seconds=run)),
        F.when(
            run.isNotNull() & window.recent.has(arrived),
            _fact(F.lit("part"), arrived, seconds=run, marked=F.col("is_last")),
        ),
        over,
        *_rare(window),
    ]


def _open(window: Window) -> Column:
    """What had not ended with the window; `seconds` since it arrived."""
    due = F.coalesce(F.col("arrived") < window.until, F.lit(False))
    state = F.when(is_live(), F.col("state")).otherwise(F.lit("ended later"))
    waited = F.when(due, F.lit(window.until) - F.col("arrived"))
    return _fact(F.lit("still_open"), label=state, seconds=waited, marked=due)


def _rare(window: Window) -> list[Column]:
    """What few messages have: failures, attempts without a record, recoveries and cron ticks."""
    ended, exception, schedule, late = F.col("ended"), F.col("exception"), F.col("schedule"), F.col("late")
    over = F.col("whole") & window.has(ended)
    recovered = over & (F.col("state") == "succeeded") & F.col("first_failed").isNotNull()
    fatal = F.col("is_last") & (F.col("state") == "failed")
    tick = F.when(F.col("began").isNotNull(), F.col("nominal"))
    return [
        F.when(
            F.col("run").isNotNull() & exception.isNotNull() & window.has(F.col("attempt_ended")),
            _fact(F.lit("failures"), label=exception, number=F.col("again"), seconds=F.col("run"), marked=fatal),
        ),
        F.when(over & (F.col("silent") > 0), _fact(F.lit("silent"), marked=F.col("silent"))),
        F.when(recovered, _fact(F.lit("recoveries"), seconds=not_negative(ended - F.col("first_failed")))),
        F.when(over & schedule.isNotNull() & late.isNotNull(), _fact(F.lit("late"), label=schedule, seconds=late)),
        F.when(over & schedule.isNotNull(), _fact(F.lit("tick"), tick, label=schedule)),
    ]


#: A fact before its moment is put into a bucket.
_FACT = {"moment": "double", "label": "string", "number": "int", "seconds": "double", "marked": "bigint"}


def _fact(figure: Column, moment: Column | None = None, **columns: Column) -> Column:
    given = columns if moment is None else {"moment": moment, **columns}
    return F.struct(figure.alias("figure"), *_typed(given, _FACT))


def _placed(facts: DataFrame, window: Window) -> DataFrame:
    """KEYS and VALUES of each. What lies before the window counts at its beginning."""
    figure, moment, seconds = F.col("figure"), F.greatest("moment", F.lit(window.since)), F.col("seconds")
    is_event, is_part = figure.isin(*_EVENTS), figure == "part"
    part = window.bucket(moment, window.period // PARTS)
    at = F.when(is_event, window.bucket(moment)).when(is_part, part).otherwise(F.col("moment"))
    placed = facts.withColumns({"at": at, "moment": moment})
    given = {
        **{name: F.col(name) for name in ("figure", "at", "queue", "label", "number", "seconds", "marked")},
        "kind": F.when(~is_part, F.col("kind")),
        "bin": F.when(figure.isin(*_SKETCHED), bin_of(seconds)),
        "n": F.lit(1),
        "area": F.when(is_event, F.least(F.col("at") + window.width, F.lit(window.until)) - F.col("moment")),
        "squares": F.when(is_part, seconds * seconds),
        "longest": seconds,
    }
    return placed.select(*_typed(given, KEYS | VALUES))


def _of_tables(window: Window) -> list[Column]:
    """What a sum adds to."""
    figure, at, label, n, marked = (F.col(name) for name in ("figure", "at", "label", "n", "marked"))
    kind, queue, longest, seconds = F.col("kind"), F.col("queue"), F.col("longest"), F.col("seconds")
    is_event, measured = figure.isin(*_EVENTS), figure.isin(*_MEASURES) & F.col("bin").isNotNull()
    measure = F.coalesce(*(F.when(figure == event, F.lit(measure)) for event, measure in _MEASURES.items()))
    sketch = {"bin": F.col("bin"), "n": n, "seconds": seconds, "longest": longest}
    durations = {"label": measure, **sketch}
    first = F.when(F.col("number") == 0, n).otherwise(0)
    missed = F.when(at.isNull(), n).otherwise(0)
    offered = {"n": n, "marked": marked, "also": marked * marked, "seconds": seconds, "squares": F.col("squares")}
    others = {
        "ended": _sum("retries", kind=kind, label=label, number=F.col("number"), n=n, marked=marked),
        "part": _sum("offered", at=window.bucket(at, window.period), queue=queue, **offered),
        "failures": _sum("failures", kind=kind, label=label, n=n, marked=marked, also=first, seconds=seconds),
        "silent": _sum("silent", kind=kind, n=marked),
        "recoveries": _sum("recoveries", kind=kind, **sketch),
        "late": _sum("late", label=label, **sketch),
        "tick": _sum("ticks", label=label, n=F.when(at.isNull(), 0).otherwise(n - 1), marked=missed),
        "still_open": _sum("still_open", kind=kind, label=label, n=n, marked=marked, longest=longest),
    }
    event = F.coalesce(label, figure)
    return [
        F.when(is_event, _sum("flow", at=at, queue=queue, kind=kind, label=event, n=n, area=F.col("area"))),
        F.when(measured, _sum("by_time", at=at, **durations)),
        F.when(measured, _sum("sketches", kind=kind, **durations)),
        F.coalesce(*(F.when(figure == name, added) for name, added in others.items())),
    ]


def _of_few_names(sums: DataFrame) -> DataFrame:
    """The same, of the MOST_KINDS with the most messages, and of all others as OTHERS; and so of exceptions.

    One task does it, so that it takes no further shuffle: of each name it reads what a chart can show.
    """
    figure, n, label = F.col("figure"), F.col("n"), F.col("label")
    failed = figure == "failures"
    kinds = _few(F.col("kind"), F.when(figure == "retries", n), MOST_KINDS, OTHERS, sums.coalesce(1))
    few = kinds.withColumn("kind", F.col("name"))
    few = _few(F.when(failed, label), n, MOST_EXCEPTIONS, OTHER_EXCEPTIONS, few)
    return few.withColumn("label", F.coalesce("name", label)).select(*KEYS, *VALUES)


def _few(name: Column, n: Column, most: int, others: str, sums: DataFrame) -> DataFrame:
    """The sums with a column `name`: it, for the `most` names with the most n, or else `others`. NULL is no name."""
    named = sums.withColumn("name", name)
    total = named.withColumn("total", F.sum(n).over(Over.partitionBy("name")))
    in_order = Over.orderBy(F.col("name").isNull(), F.col("total").desc_nulls_last(), "name")
    ranked = total.withColumn("rank", F.dense_rank().over(in_order))
    return ranked.withColumn(
        "name", F.when(F.col("name").isNotNull() & (F.col("rank") > most), others).otherwise(F.col("name"))
    )


def _sum(figure: str, **columns: Column) -> Column:
    return F.struct(*_typed({"figure": F.lit(figure), **columns}, KEYS | VALUES))


def _typed(given: Mapping[str, Column], types: Mapping[str, str]) -> list[Column]:
    """Columns of these names and types; what is not given is NULL."""
    return [given.get(name, F.lit(None)).cast(type_).alias(name) for name, type_ in types.items()]


def _exploded(rows: DataFrame, facts: list[Column], *kept: str) -> DataFrame:
    fact = rows.select(*kept, F.explode(F.array(*facts)).alias("fact"))
    return fact.where(F.col("fact").isNotNull()).select(*kept, "fact.*")


def _added(facts: DataFrame) -> DataFrame:
    sums = [(F.max if name == "longest" else F.sum)(name).alias(name) for name in VALUES]
    return facts.groupBy(*KEYS).agg(*sums)
