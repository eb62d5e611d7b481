"""How many threads it takes to start messages in time, from the work that arrived in each period. Plain Python.

The need of a period is the fewest threads with which a given share of its messages would wait at most the target's time
(see `core.erlang`), had the period gone on without end. A plan covers 19 of 20 periods, and names the need of the
busiest one. How far chance may move it is read from 200 histories drawn from the weeks of this one (days, where it is
shorter).
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.core.erlang import Traffic
from delayedq.pipeline.report.timing import DAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayedq.pipeline.report.timing import Window

    #: Of `analytics.offered`.
    Row = dict[str, Any]

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


class Period(NamedTuple):
    begins: float
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Plan:
    """For one queue, or ALL of them. Loads in erlangs; `low` and `high` bound `threads` by chance, if that is known."""

    queue: str
    mean_load: float
    peak: Period
    threads: int
    peak_threads: int
    low: int | None = None
    high: int | None = None


def plans(offered: Sequence[Row], window: Window, target: Target) -> list[Plan]:
    """One for ALL, and one for each queue if there are several, from the rows of `analytics.offered`."""
    by_queue: dict[str, list[Row]] = defaultdict(list)
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
    known = [Period(row["period"], traffic_of(row, window.length(row["period"]))) for row in rows]
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
