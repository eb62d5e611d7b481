"""What a report counts, in one pass of Spark over the messages.

Each message becomes a few *facts*: rows with the same columns, whose `figure` says what they are of. They are added up
by their keys, and the sums, which are few, become those of every table and are added up once more. So a report is one
query with two shuffles, however many tables it has, and no message is read, parsed or kept twice.

Percentiles come from sketches: how many durations fell into each bin of a logarithmic scale. This is the DDSketch of
Masson, Rim and Lee ("DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019),
kept as a plain table.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from delayedq.pipeline.report.timing import DAY, is_live, not_negative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from delayedq.pipeline.report.timing import Window

#: A percentile is at most so far from the true one, as a share of it.
ERROR = 0.01
GROWTH = (1 + ERROR) / (1 - ERROR)
#: Seconds; what is shorter counts as this.
SHORTEST = 1e-6

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
    """The facts of every table, added up: KEYS and VALUES. `messages` is what `timing.timed` makes.

    A figure counts what happened within the window: arrivals that arrived, waits that were over, attempts and messages
    that ended in it.
    """
    facts = _added(_placed(_exploded(_attempts(messages), _facts(window), "queue", "kind"), window))
    return _added(_exploded(facts, _of_tables(window)))


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
    return rows.withColumns(
        {
            "whole": whole,
            "attempt_began": F.when(whole, F.col("started")).otherwise(failure.began),
            "attempt_ended": F.when(whole, F.col("ended")).otherwise(failure.ended),
            "run": F.when(~whole, failure.run).when(~F.col("recorded"), F.col("run")),
            "is_last": whole | (failure.attempt == F.col("attempts")),
            "exception": failure.exception,
            "again": F.when(~whole, F.exists(earlier, lambda other: other.exception == failure.exception)),
            # Whose clock was behind began before its time.
            "left": F.greatest(F.coalesce("began", "started", "ended"), "arrived"),
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
            run.isNotNull() & window.has(arrived),
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
        F.when(measured, _sum("sketches", at=window.bucket(at, DAY), queue=queue, kind=kind, **durations)),
        F.coalesce(*(F.when(figure == name, added) for name, added in others.items())),
    ]


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
