"""Fair turn beside first in, first out: `python -m tests.benchmarks.fair_turn`, and docs/images/fair-turn.png.

One tenant has 100,000 messages, stored first; 100 tenants have 10 each. One worker process, this one, drains them
twice: each tenant in a channel, and without channels. What is told of both: when each of the small tenants was done.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from tests.benchmarks.chart import OURS
from tests.benchmarks.database import migrated
from tests.benchmarks.limits import drained, query

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE, TENANTS, EACH = 100_000, 100, 10
GOAL = 5  # percent of the time
FIFO = "#5f6b7c"
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "fair-turn.png"

#: The seconds after which the last message of each small tenant ended, and then those after which all had.
ENDS = """
SELECT extract(epoch FROM max(finished_at) - (SELECT min(started_at) FROM delayedq_finishedmessage))::float8 AS seconds
FROM delayedq_finishedmessage GROUP BY {tenant} ORDER BY {tenant} = 'large', seconds
"""
TENANT = "substring(payload FROM '(large|small [0-9]+)')"


class Run(NamedTuple):
    """Seconds after the first start: when each small tenant was done, in order; and when all messages had ended."""

    done: Sequence[float]
    total: float

    @property
    def shares(self) -> list[float]:
        """When each small tenant was done, in percent of the time."""
        return [100 * one / self.total for one in self.done]

    def __str__(self) -> str:
        return (
            f"the last small tenant was done after {self.done[-1]:.2f} of {self.total:.1f} s, {self.shares[-1]:.1f} %"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--large", type=int, default=LARGE, help="messages of the large tenant")
    arguments.add_argument("--image", type=Path, default=IMAGE)
    given = arguments.parse_args()
    with migrated():
        from delayedq.worker.child import SWITCH_INTERVAL
        from tests.app import tasks

        sys.setswitchinterval(SWITCH_INTERVAL)  # as worker processes do
        fair, fifo = (measured(task, given.large) for task in (tasks.forward, tasks.nothing))
    sys.stdout.write(f"in fair turn: {fair}\nfirst in, first out: {fifo}\n")
    draw(fair, fifo, given.large, given.image)


def measured(task, large: int) -> Run:
    drained(large + TENANTS * EACH, partial(fill, task, large))
    *done, total = [seconds for (seconds,) in query(ENDS.format(tenant=TENANT))]
    assert len(done) == TENANTS, f"{len(done)} small tenants"
    return Run(done, max(total, done[-1]))


def fill(task, large: int, _messages: int) -> None:
    task.enqueue_bulk((("large",), {}) for _ in range(large))
    task.enqueue_bulk(((f"small {number % TENANTS}",), {}) for number in range(TENANTS * EACH))


def draw(fair: Run, fifo: Run, large: int, path: Path) -> None:
    """How many small tenants are done, over the time until all messages have ended."""
    drawing, panel = plt.subplots(figsize=(8, 3.4), layout="constrained")
    panel.axvspan(0, GOAL, color=OURS, alpha=0.1, linewidth=0)
    for run, colour in ((fifo, FIFO), (fair, OURS)):
        panel.step([0, *run.shares, 100], [0, *range(1, TENANTS + 1), TENANTS], where="post", color=colour, linewidth=2)
    _say(
        panel,
        f"With a channel for each tenant:\nall small ones done after {fair.done[-1]:.2f} s",
        fair,
        OURS,
        8,
        "left",
    )
    _say(panel, f"Without channels:\nall small ones done after {fifo.done[-1]:.2f} s", fifo, FIFO, -8, "right")
    panel.set_title(
        f"{TENANTS} tenants with {EACH} messages each, behind one with {large:,}", loc="left", size=10, weight="bold"
    )
    panel.set_xlabel("% of the time until all messages have ended", size=9)
    panel.set_ylabel("small tenants that are done", size=9)
    panel.set_xlim(0, 101)
    panel.set_ylim(0, TENANTS * 1.04)
    panel.set_xticks([GOAL, *range(20, 101, 20)], [f"first {GOAL} %", *map(str, range(20, 101, 20))])
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    drawing.savefig(path, dpi=144)
    plt.close(drawing)


def _say(panel: plt.Axes, said: str, run: Run, colour: str, apart: int, side: str) -> None:
    last = f"{said} ({run.shares[-1]:.1f} % of {run.total:.1f} s)"
    place = (run.shares[-1], TENANTS * 0.55)
    panel.annotate(
        last, place, xytext=(apart, 0), textcoords="offset points", ha=side, va="center", color=colour, size=9
    )


if __name__ == "__main__":
    main()
