"""The tables of a report, made of the facts that Spark counted (`facts.counted`). Arrow and plain Python."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from delayedq.pipeline.report.facts import GROWTH, KEYS, PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayedq.pipeline.report.timing import Window

Row = dict[str, Any]

PERCENTILES = (50, 95, 99)

_TEXT, _TIME, _COUNT = pa.string(), pa.float64(), pa.int64()


def tables(counted: pa.Table, window: Window) -> dict[str, pa.Table]:
    """All of them by name, each sorted by its keys."""
    counted = counted.sort_by([(name, "ascending") for name in KEYS])
    flow = _of(counted, "flow", at="bucket", queue="queue", kind="kind", label="event", n="n", area="remaining")
    retries = _of(counted, "retries", kind="kind", label="state", number="attempts", n="n", marked="early")
    sketches = _sketch(counted, "sketches", at="day", queue="queue", kind="kind", label="measure")
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
