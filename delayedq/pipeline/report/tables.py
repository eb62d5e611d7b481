"""The tables of a report, made of the facts that Spark counted (`facts.counted`). Arrow and plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyspark.sql import functions as F

from delayedq.core.scaling import Traffic
from delayedq.pipeline.report import facts
from delayedq.pipeline.report.facts import DAY, GROWTH, KEYS, PARTS, Window, arrival, moment, timed, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame


Row = dict[str, Any]

PERCENTILES = (50, 95, 99)

_TEXT, _TIME, _COUNT = pa.string(), pa.float64(), pa.int64()


def tables(counted: pa.Table, window: Window) -> dict[str, pa.Table]:
    """All of them by name, each sorted by its keys."""
    counted = counted.sort_by([(name, "ascending") for name in KEYS])
    flow = _of(counted, "flow", at="bucket", queue="queue", kind="kind", label="event", n="n", area="remaining")
    retries = _of(counted, "retries", kind="kind", label="state", number="attempts", n="n", marked="early")
    sketches = _sketch(counted, "sketches", kind="kind", label="measure")
    overall, by_kind = merge(sketches, ["measure"]), percentiles(sketches, ["measure", "kind"])
    by_time = _sketch(counted, "by_time", at="bucket", label="measure")
    recoveries = percentiles(_sketch(counted, "recoveries", kind="kind"), ["kind"])
    return {
        "flow": flow,
        "backlog": backlog(flow, window),
        "overall": percentiles(overall, ["measure"]),
        "by_time": percentiles(by_time, ["measure", "bucket"]),
        "by_kind": by_kind,
        "distribution": overall,
        "sketches": sketches,
        "offered": offered(counted),
        "retries": retries,
        "failures": failures(counted),
        "recoveries": recoveries.select(["kind", "n", "p50", "p95", "longest"]),
        "leases": leases(retries, _of(counted, "silent", kind="kind", n="n"), by_kind),
        "drift": drift(counted),
        "still_open": _of(counted, "still_open", kind="kind", label="state", n="n", marked="due", longest="oldest"),
    }


# Percentiles
def merge(sketch: pa.Table, by: Sequence[str]) -> pa.Table:
    """A sketch of fewer columns, sorted by them: by, bin, n, seconds, longest, added up over all other columns."""
    keys = [*by, "bin"]
    added = sketch.group_by(keys).aggregate([("n", "sum"), ("seconds", "sum"), ("longest", "max")])
    return added.rename_columns([*keys, "n", "seconds", "longest"]).sort_by([(name, "ascending") for name in keys])


def percentiles(sketch: pa.Table, by: Sequence[str]) -> pa.Table:
    """by, n, mean, p50, p95, p99, longest (all in seconds but n), of a sketch: by, bin, n, seconds, longest.

    A sketch with more columns is added up over these: percentiles of days give those of a month.
    """
    merged = merge(sketch, by)
    starts = _starts(merged, by)
    upto = np.cumsum(merged["n"].to_numpy())
    before = (upto - merged["n"].to_numpy())[starts]
    n = _reduced(np.add, merged["n"], starts)
    longest = _reduced(np.maximum, merged["longest"], starts)
    bins = merged["bin"].to_numpy()
    columns = {name: merged[name].take(pa.array(starts)) for name in by}
    columns |= {"n": pa.array(n, _COUNT), "mean": pa.array(_reduced(np.add, merged["seconds"], starts) / n, _TIME)}
    for percent in PERCENTILES:
        reached = np.searchsorted(upto * 100, before * 100 + n * percent)  # the first bin that reaches the rank
        columns[f"p{percent}"] = pa.array(np.minimum(_middle(bins[reached]), longest), _TIME)
    return pa.table(columns | {"longest": pa.array(longest, _TIME)})


def _middle(bins: np.ndarray) -> np.ndarray:
    """The durations, in seconds, that are within ERROR of every one in their bins."""
    return GROWTH ** bins.astype(float) * (2 / (GROWTH + 1))


def _starts(rows: pa.Table, by: Sequence[str]) -> np.ndarray:
    """Where a new group of sorted rows begins."""
    changes = np.arange(rows.num_rows) == 0
    for name in by:
        values = rows[name].combine_chunks()
        changes[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changes)


def _reduced(how: np.ufunc, values: pa.ChunkedArray, starts: np.ndarray) -> np.ndarray:
    return how.reduceat(values.to_numpy(), starts) if len(starts) else values.to_numpy()


# Levels and loads
def backlog(flow: pa.Table, window: Window) -> pa.Table:
    """How many waited and ran in each queue, reconstructed from `flow`; every bucket has a row.

    bucket, queue, seconds (of the bucket, within the window), arrived; `waiting` and `running` at its end, and
    `waiting_mean` and `running_mean` over its time, which are exact: what stood at the beginning lasts for the whole
    bucket; each change, for what remains of it.
    """
    changes: dict[tuple[str, float], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in flow.group_by(["queue", "bucket", "event"]).aggregate([("n", "sum"), ("remaining", "sum")]).to_pylist():
        level, sign = _CHANGES.get(row["event"], ("", 0))
        change = changes[row["queue"], row["bucket"]]
        change[level] += sign * row["n_sum"]
        change[f"{level}_area"] += sign * row["remaining_sum"]
        change["arrived"] += row["n_sum"] * (row["event"] == "arrived")
    rows = [row for queue in sorted({queue for queue, _ in changes}) for row in _levels(queue, changes, window)]
    return pa.Table.from_pylist(rows, _BACKLOG)


_CHANGES = {"carried": ("waiting", 1), "arrived": ("waiting", 1), "left": ("waiting", -1), "started": ("running", 1),
            "stopped": ("running", -1)}  # fmt: skip


def _levels(queue: str, changes: dict[tuple[str, float], dict[str, float]], window: Window) -> Iterable[Row]:
    stand = {"waiting": 0.0, "running": 0.0}
    for bucket in window.buckets():
        change = changes.get((queue, bucket), {})
        seconds = min(bucket + window.width, window.until) - max(bucket, window.since)
        row: Row = {"bucket": bucket, "queue": queue, "seconds": seconds, "arrived": int(change.get("arrived", 0))}
        for level, before in stand.items():
            row[f"{level}_mean"] = before + change.get(f"{level}_area", 0.0) / seconds
            row[level] = int(before + change.get(level, 0))
        stand = {level: row[level] for level in stand}
        yield row


_BACKLOG = pa.schema(
    [("bucket", _TIME), ("queue", _TEXT), ("seconds", _TIME), ("arrived", _COUNT), ("waiting", _COUNT),
     ("running", _COUNT), ("waiting_mean", _TIME), ("running_mean", _TIME)]
)  # fmt: skip


def offered(counted: pa.Table) -> pa.Table:
    """The work that arrived in each period: period, queue, messages, attempts, work, squares, dispersion.

    `work` and `squares` add up the seconds, and squared seconds, that the attempts of these messages ran. `dispersion`
    is the variance over the mean of the arrivals in each part of the period: 1 for pure chance, more in bursts.
    """
    added = _of(
        counted, "offered", at="period", queue="queue", marked="messages", n="attempts", seconds="work",
        squares="squares", also="squared",
    )  # fmt: skip
    mean = pc.divide(added["messages"].cast(_TIME), PARTS)
    variance = pc.subtract(pc.divide(added["squared"].cast(_TIME), PARTS), pc.multiply(mean, mean))
    known = pc.if_else(pc.greater(mean, 0.0), mean, None)
    return added.drop_columns(["squared"]).append_column("dispersion", pc.divide(variance, known))


# By task and schedule
def failures(counted: pa.Table) -> pa.Table:
    """What went wrong: kind, exception, attempts, messages, dead (messages that ended with it), wasted (seconds)."""
    values = {"n": "attempts", "also": "messages", "marked": "dead", "seconds": "wasted"}
    return _of(counted, "failures", kind="kind", label="exception", **values)


def leases(retries: pa.Table, silent: pa.Table, by_kind: pa.Table) -> pa.Table:
    """Attempts that ended without a record, or after their message was replaced: kind, attempts, silent, superseded,
    longest (seconds that an attempt ran).
    """
    ran = {row["kind"]: row["longest"] for row in by_kind.to_pylist() if row["measure"] == "run"}
    lost = {row["kind"]: row["n"] for row in silent.to_pylist()}
    rows: dict[str, Row] = {}
    for row in retries.to_pylist():
        kind = row["kind"]
        new = {"kind": kind, "attempts": 0, "silent": lost.get(kind, 0), "superseded": 0, "longest": ran.get(kind)}
        found = rows.setdefault(kind, new)
        found["attempts"] += row["n"] * row["attempts"]
        found["superseded"] += row["n"] * (row["state"] == "superseded")
    return pa.Table.from_pylist(list(rows.values()), _LEASES)


_LEASES = pa.schema(
    [("kind", _TEXT), ("attempts", _COUNT), ("silent", _COUNT), ("superseded", _COUNT), ("longest", _TIME)]
)


def drift(counted: pa.Table) -> pa.Table:
    """How late the ticks of cron schedules began: schedule, n, p50, p95, longest (seconds), cancelled, repeated.

    `cancelled` ticks were missed and never ran; `repeated` ones ran besides another of the same nominal time.
    """
    late = percentiles(_sketch(counted, "late", label="schedule"), ["schedule"]).to_pylist()
    known = {row["schedule"]: {name: row[name] for name in ("n", "p50", "p95", "longest")} for row in late}
    ticks = _of(counted, "ticks", label="schedule", marked="cancelled", n="repeated")
    return pa.Table.from_pylist([{"n": 0} | row | known.get(row["schedule"], {}) for row in ticks.to_pylist()], _DRIFT)


_DRIFT = pa.schema(
    [("schedule", _TEXT), ("n", _COUNT), ("p50", _TIME), ("p95", _TIME), ("longest", _TIME), ("cancelled", _COUNT),
     ("repeated", _COUNT)]
)  # fmt: skip


# Parts
def _of(counted: pa.Table, figure: str, **names: str) -> pa.Table:
    """The facts of a figure: the columns that it has, by the names that they have there."""
    return counted.filter(pc.field("figure") == figure).select(list(names)).rename_columns(list(names.values()))


def _sketch(counted: pa.Table, figure: str, **keys: str) -> pa.Table:
    """keys, bin, n, seconds (their sum), longest."""
    return _of(counted, figure, **keys, bin="bin", n="n", seconds="seconds", longest="longest")


# How many threads it takes to start messages in time, from the work that arrived in each period. Plain Python.
#
# The need of a period is the fewest threads with which a given share of its messages would wait at most the target's
# time (see `core.scaling`), had the period gone on without end. A plan covers 19 of 20 periods, and names the need of
# the busiest one. How far chance may move it is read from 200 histories drawn from the weeks of this one (days, where
# it is shorter).


ALL = "all queues"

COVERED = 0.95

_DRAWS = 200

_FEWEST_BLOCKS = 3

#: The dispersion of fewer messages says nothing.
_FEW = 30


class Target(NamedTuple):
    """`share` of the messages of a period begin within `seconds` of their time."""

    seconds: float = 1.0
    share: float = 0.95


class ReportPeriod(NamedTuple):
    begins: float
    traffic: Traffic


#: In erlangs. More comes from rows that no worker has written, and would be calculated for hours.
_MOST_LOAD = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """For one queue, or ALL of them. Loads in erlangs; `low` and `high` bound `threads` by chance, if that is known."""

    queue: str
    mean_load: float
    peak: ReportPeriod
    threads: int
    peak_threads: int
    low: int | None = None
    high: int | None = None


def plans(offered: Sequence[Row], window: Window, target: Target) -> list[Plan]:
    """One for ALL, and one for each queue if there are several, from the rows of `offered`."""
    by_queue: dict[str, list[Row]] = defaultdict(list)
    offered = [row for row in offered if row["work"] / window.length(row["period"]) <= _MOST_LOAD]
    for row in offered:
        by_queue[str(row["queue"])].append(row)
    together = [_plan(ALL, _added(offered), window, target)] if len(by_queue) > 1 else []
    return together + [_plan(queue, rows, window, target) for queue, rows in sorted(by_queue.items())]


def curve(traffic: Traffic, target: Target, threads: int) -> list[tuple[int, float]]:
    """The wait by the number of threads, around a given number: (threads, seconds)."""
    first = int(traffic.load) + 1
    last = max(threads + 3, first + 6, ceil(threads * 1.2))
    return [(number, traffic.wait(target.share, number)) for number in range(first, last + 1)]


def traffic_of(row: Row, seconds: float) -> Traffic:
    """`seconds` is how long these attempts took to arrive."""
    run = row["work"] / row["attempts"]
    squares = row["squares"] / row["attempts"]
    dispersion = row["dispersion"] if row["messages"] >= _FEW and row["dispersion"] is not None else 1.0
    return Traffic(row["attempts"] / seconds, run, dispersion, max(0.0, squares / run**2 - 1) if run else 0.0)


def _plan(queue: str, rows: Sequence[Row], window: Window, target: Target) -> Plan:
    known = [ReportPeriod(row["period"], traffic_of(row, window.length(row["period"]))) for row in rows]
    needs = {period: period.traffic.threads_for(target.seconds, target.share) for period in known}
    peak = max(known, key=lambda period: (needs[period], period.traffic.load))
    low, high = _chance({period.begins: need for period, need in needs.items()}, window)
    return Plan(
        queue=queue,
        mean_load=sum(row["work"] for row in rows) / window.seconds,
        peak=peak,
        threads=_covering(list(needs.values())),
        peak_threads=needs[peak],
        low=low,
        high=high,
    )


def _added(offered: Iterable[Row]) -> list[Row]:
    """All queues as one: what is independent adds up, variances included."""
    sums: dict[float, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in offered:
        total = sums[row["period"]]
        for name in ("messages", "attempts", "work", "squares"):
            total[name] += row[name]
        total["variance"] += row["messages"] * (1.0 if row["dispersion"] is None else row["dispersion"])
    return [
        {**total, "period": period, "dispersion": total["variance"] / max(total["messages"], 1)}
        for period, total in sums.items()
    ]


def _covering(needs: list[int]) -> int:
    return sorted(needs)[ceil(COVERED * len(needs)) - 1]


def _chance(needs: dict[float, int], window: Window) -> tuple[int | None, int | None]:
    """The middle nine tenths of what other draws of these weeks would ask for."""
    width = 7 * DAY if window.seconds >= 7 * DAY * _FEWEST_BLOCKS else DAY
    blocks: dict[float, list[int]] = defaultdict(list)
    for begins, need in needs.items():
        blocks[begins // width].append(need)
    if len(blocks) < _FEWEST_BLOCKS:
        return None, None
    rng = random.Random(0)  # noqa: S311 - the same history gives the same report
    weeks = list(blocks.values())
    draws = sorted(_covering([n for week in rng.choices(weeks, k=len(weeks)) for n in week]) for _ in range(_DRAWS))
    return draws[_DRAWS // 20], draws[-1 - _DRAWS // 20]


# All that a report says: small tables, made of the facts that Spark counted, and the plans drawn from them.


@dataclass(frozen=True, kw_only=True)
class ReportFigures:
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
) -> ReportFigures:
    """Everything about a window of `messages`, which have the columns of MESSAGES or LAKE, live ones or not.

    One query of Spark, whatever the number of tables. Raises ValueError for a window that is none.

        figures = measure(Lake(spark, "/srv/lake").history(), since, until)
        figures.overall("wait")["p95"]  # seconds
    """
    window = Window.between(since, until)
    counted = facts.counted(timed(within(messages, since, until)), window).toArrow()
    found = tables(counted, window)
    offered = found["offered"].to_pylist()
    return ReportFigures(
        window=window, tables=found, target=target, lease=lease, plans=plans(offered, window.recent, target)
    )


#: The first and the last second that Python knows, since 1970.
_YEAR_1, _YEAR_9999 = -62_135_596_800, 253_402_300_799


def span(messages: DataFrame) -> tuple[datetime, datetime] | None:
    """From the first arrival to just after the last end, in whole seconds; None if no message has ended."""
    ends = messages.where(F.col("finished_at").isNotNull()).select(
        F.unix_micros(F.min(arrival())).alias("first"), F.unix_micros(F.max("finished_at")).alias("last")
    )
    row = ends.first()
    if row is None or row["last"] is None:
        return None
    first, last = row["first"] // 1_000_000, row["last"] // 1_000_000 + 1
    return moment(max(first, _YEAR_1)), moment(min(last, _YEAR_9999))
