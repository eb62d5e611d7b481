"""The charts of the report: figures in, SVG out."""

from __future__ import annotations

import re
from io import StringIO
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from delayedq.pipeline.report import words
from delayedq.pipeline.report.facts import DAY, GROWTH, HOUR, OTHERS, moment
from delayedq.pipeline.report.tables import curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from delayedq.pipeline.report.tables import Plan, ReportFigures, Row

# How charts look: drawn by matplotlib, as SVG whose colours are those of the page, in light and in dark.


#: matplotlib knows no CSS variables: these stand for them, and no chart has other colours.
INK, MUTED, GRID, PAPER, BLUE, ORANGE, RED, VIOLET, GREEN = (f"#0101{number:02x}" for number in range(1, 10))

_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    BLUE: "blue",
    ORANGE: "orange",
    RED: "red",
    VIOLET: "violet",
    GREEN: "green",
}

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "delayedq",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}

#: By what changes from tick to tick: year, month, day, hour, minute, second; and where the next larger one changes too.
_DATES = ["%Y", "%b", "%-d %b", "%H:%M", "%H:%M", "%H:%M:%S"]

_FIRST_DATES = ["%Y", "%b %Y", "%-d %b", "%-d %b", "%H:%M", "%H:%M"]

#: Seconds that people count in.
_ROUND = tuple(
    sorted({*(10.0**n for n in range(-6, 1)), 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400})
)

#: With so many ticks there is an interval for every span; with fewer, AutoDateLocator needs leave to take 2.
_MANY_LINES = 8


class ReportChart:
    """One figure of one or more axes beside each other; `svg` ends it."""

    def __init__(self, height: float = 2.7, columns: int = 1, *, share_y: bool = False) -> None:
        with mpl.rc_context(_STYLE):
            self.figure = Figure(figsize=(9.6, height), layout=ConstrainedLayoutEngine(wspace=0.06))
            self.axes: list[Axes] = list(self.figure.subplots(1, columns, squeeze=False, sharey=share_y)[0])

    def svg(self, label: str) -> str:
        """To be put into a page; `label` is for those who don't see it."""
        text = StringIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        svg = text.getvalue()[text.getvalue().index("<svg") :]
        for colour, variable in _VARIABLES.items():
            svg = svg.replace(colour, f"var(--{variable})")
        svg = re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", svg, count=1)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        return svg.replace("<svg", f'<svg role="img" aria-label="{_escaped(label)}"', 1)


def time_axis(axes: Axes, ticks: int = 8) -> None:
    """Make the x axis one of moments in UTC, with so many of them named; values are days since 1970."""
    locator = AutoDateLocator(minticks=2 if ticks < _MANY_LINES else 4, maxticks=ticks, tz="UTC")  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(  # type: ignore[no-untyped-call]
        locator, tz="UTC", formats=_DATES, zero_formats=_FIRST_DATES, show_offset=False
    )
    axes.xaxis.set_major_formatter(formatter)
    axes.margins(x=0.005)


def duration_axis(axes: Axes, which: str, shortest: float, longest: float) -> None:
    """Make the x or y axis logarithmic, from `shortest` to `longest` seconds, with ticks that people count in."""
    low, high = duration_limits(shortest, longest)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis.set_major_locator(FixedLocator([mark for mark in _ROUND if low <= mark <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda seconds, _: words.duration(seconds)))


def duration_limits(shortest: float, longest: float) -> tuple[float, float]:
    """Where an axis that shows these seconds begins and ends: wide enough for at least two round numbers."""
    low = max((mark for mark in _ROUND if mark <= shortest), default=_ROUND[0])
    high = min((mark for mark in _ROUND if mark >= longest), default=longest)
    return low, high if high > low else next((mark for mark in _ROUND if mark > low), low * 10)


def count_axis(axes: Axes) -> None:
    """Make the y axis one of whole numbers from 0."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: words.count(number)))


def legend(axes: Axes) -> None:
    """Above the axes, in one row."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(axes.get_legend_handles_labels()[0]),
        frameon=False,
        borderaxespad=0,
        handlelength=1.2,
        labelcolor=INK,
    )


def _escaped(label: str) -> str:
    return label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


# Charts


COLOURS = {"succeeded": BLUE, "failed": RED, "cancelled": MUTED, "expired": MUTED, "superseded": VIOLET}

MOST_KINDS = 12

#: The fewest points that make a curve.
CURVE = 3

_MANY = 1_000

#: Seconds; on charts what is shorter stands here.
_SHORTEST = 1e-5

#: Seconds; whoever waits less than this does not wait.
_NO_WAIT = 1e-3

_NEARLY_ALL = 0.9

_WIDE = 34

_MOST_ATTEMPTS = 12

_MEASURES = {"wait": ORANGE, "run": BLUE, "turnaround": VIOLET}

_WEEK_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_PERCENTILES = (("p50", GREEN), ("p95", ORANGE), ("p99", RED))


def throughput(figures: ReportFigures, label: str) -> str:
    """Bars of what ended, a line of what arrived."""
    chart = ReportChart()
    axes, buckets = chart.axes[0], figures.window.buckets()
    events = figures.events
    edges = [*buckets, buckets[-1] + figures.window.width]
    below = [0.0] * len(buckets)
    for state, colour in COLOURS.items():
        counts = [events.get((bucket, state), 0) for bucket in buckets]
        if any(counts):
            top = [low + n for low, n in zip(below, counts, strict=True)]
            axes.stairs(top, _moments(edges), baseline=below, fill=True, color=colour, alpha=0.75, label=state)
            below = top
    arrived = [events.get((bucket, "arrived"), 0) for bucket in buckets]
    axes.stairs(arrived, _moments(edges), baseline=None, color=INK, linewidth=1.1, label="arrived")
    axes.set_ylabel(f"messages in {words.duration(figures.window.width)}")
    legend(axes)
    count_axis(axes)
    time_axis(axes)
    return chart.svg(label)


def backlog(figures: ReportFigures, label: str) -> str:
    """Two panels: what waited, and what ran."""
    chart = ReportChart(columns=2)
    for axes, level, colour in zip(chart.axes, ("waiting", "running"), (ORANGE, BLUE), strict=True):
        means = [row[f"{level}_mean"] for row in figures.levels.values()]
        times = _middles(figures)
        axes.fill_between(times, means, color=colour, alpha=0.18, linewidth=0)
        axes.plot(times, means, color=colour)
        axes.set_title(f"{level}, on average", loc="left", fontsize=9.5, color=colour)
        count_axis(axes)
        time_axis(axes, ticks=5)
    return chart.svg(label)


def waits(figures: ReportFigures, label: str) -> str:
    """Percentiles of the wait through time, and the target. Where no wait ended there is no line."""
    chart = ReportChart()
    axes = chart.axes[0]
    rows = {row["bucket"]: row for row in figures.rows("by_time", measure="wait")}
    found = [rows.get(bucket) for bucket in figures.window.buckets()]
    for name, colour in _PERCENTILES:
        values = [nan if row is None else _visible(row[name]) for row in found]
        axes.plot(_middles(figures), values, color=colour, marker="o", markersize=3, markevery=_alone(found),
                  clip_on=False, label=name)  # fmt: skip
    target = f"target {words.duration(figures.target.seconds)}"
    axes.axhline(figures.target.seconds, color=MUTED, linewidth=1, linestyle=(0, (2, 3)), label=target)
    values = [_visible(row[name]) for row in rows.values() for name, _ in _PERCENTILES]
    duration_axis(axes, "y", min(values), max(*values, figures.target.seconds))
    legend(axes)
    time_axis(axes)
    return chart.svg(label)


def by_kind(figures: ReportFigures, label: str) -> str:
    """From p50 by p95 to p99, of wait and of run time, for the kinds with most messages."""
    names = [row["kind"] for row in kinds(figures) if row["kind"] != OTHERS][:MOST_KINDS]
    chart = ReportChart(height=0.9 + 0.3 * len(names), columns=2, share_y=True)
    for axes, measure in zip(chart.axes, ("wait", "run"), strict=True):
        rows = {row["kind"]: row for row in figures.rows("by_kind", measure=measure)}
        places = {len(names) - place: rows[name] for place, name in enumerate(names) if name in rows}
        _spreads(axes, places, _MEASURES[measure])
        title = {"wait": "wait", "run": "run time of an attempt"}[measure]
        axes.set_title(f"{title}: p50, p95, p99", loc="left", fontsize=9.5, color=_MEASURES[measure])
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
    chart.axes[0].yaxis.set_major_locator(FixedLocator(range(len(names), 0, -1)))
    chart.axes[0].yaxis.set_major_formatter(FixedFormatter([_tail(name) for name in names]))
    chart.axes[0].set_ylim(0.4, len(names) + 0.6)
    chart.axes[1].tick_params(labelleft=False)
    return chart.svg(label)


def distribution(figures: ReportFigures, label: str) -> str:
    """The share of messages that takes longer than a time, by that time."""
    chart = ReportChart()
    axes, shortest, longest = chart.axes[0], [], []
    for measure, colour in _MEASURES.items():
        rows = sorted(figures.rows("distribution", measure=measure), key=lambda row: row["bin"])
        if not rows:
            continue
        total = sum(row["n"] for row in rows)
        ends = [GROWTH ** (rows[0]["bin"] - 1), *(GROWTH ** row["bin"] for row in rows)]
        longer = [1 - upto / total for upto in accumulate((row["n"] for row in rows), initial=0)]
        axes.plot(ends, longer, color=colour, drawstyle="steps-post", label=_NAMES[measure])
        shortest.append(ends[next(i for i, rest in enumerate(longer) if rest < _NEARLY_ALL)])
        longest.append(ends[-1])
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1.3)
    axes.yaxis.set_major_locator(FixedLocator([1, 0.1, 0.01, 0.001, 0.0001]))
    axes.yaxis.set_major_formatter(FixedFormatter(["all", "1 in 10", "1 in 100", "1 in 1,000", "1 in 10,000"]))
    axes.yaxis.set_minor_locator(NullLocator())
    duration_axis(axes, "x", max(min(shortest), 1e-3), max(longest))
    axes.grid(visible=True, axis="x")
    legend(axes)
    return chart.svg(label)


def week(figures: ReportFigures, label: str) -> str:
    """Hours of the week, the darker the more arrived."""
    chart = ReportChart(height=2.2)
    axes, loads = chart.axes[0], hours_of_week(figures)
    most = max(loads.values())
    for (day, hour), load in loads.items():
        axes.add_patch(Rectangle((hour, 6 - day), 0.94, 0.9, color=BLUE, alpha=0.06 + 0.94 * load / most, linewidth=0))
    axes.set_xlim(0, 24)
    axes.set_ylim(0, 7)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(FixedLocator([0, 3, 6, 9, 12, 15, 18, 21, 24]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{hour:02}:00" for hour in range(0, 25, 3)]))
    axes.yaxis.set_major_locator(FixedLocator([6.45 - day for day in range(7)]))
    axes.yaxis.set_major_formatter(FixedFormatter(list(_WEEK_DAYS)))
    axes.spines["bottom"].set_visible(False)
    return chart.svg(label)


def capacity(figures: ReportFigures, plan: Plan, label: str) -> str:
    """The wait in the busiest period, by the number of threads."""
    chart = ReportChart()
    axes, target = chart.axes[0], figures.target
    points = falling(figures, plan)
    threads, seconds = [n for n, _ in points], [_visible(wait) for _, wait in points]
    axes.plot(threads, seconds, color=BLUE, marker="o", markersize=4, clip_on=False)
    axes.axhline(target.seconds, color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
    axes.annotate(f"target {words.duration(target.seconds)}", (threads[-1], target.seconds), color=MUTED,
                  xytext=(0, 4), textcoords="offset points", ha="right")  # fmt: skip
    met = _visible(plan.peak.traffic.wait(target.share, plan.peak_threads))
    axes.plot([plan.peak_threads], [met], color=GREEN, marker="o", markersize=9, markeredgecolor=PAPER, clip_on=False)
    axes.annotate(words.several(plan.peak_threads, "thread"), (plan.peak_threads, met), color=GREEN,
                  xytext=(8, 8), textcoords="offset points", fontweight="bold")  # fmt: skip
    duration_axis(axes, "y", min(*seconds, target.seconds), max(*seconds, target.seconds))
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlabel("threads")
    return chart.svg(label)


def retries(figures: ReportFigures, label: str) -> str:
    """The share of messages that had succeeded after at most N attempts, by N."""
    chart = ReportChart(height=2.2)
    axes = chart.axes[0]
    reached = within_attempts(figures)[:_MOST_ATTEMPTS]
    numbers = [attempts for attempts, _ in reached]
    axes.bar(numbers, [part for _, part in reached], color=BLUE, alpha=0.75, width=0.7)
    for attempts, part in reached:
        axes.annotate(words.share(part, 1), (attempts, part), color=INK, ha="center",
                      xytext=(0, 3), textcoords="offset points")  # fmt: skip
    axes.xaxis.set_major_locator(FixedLocator(numbers))
    axes.set_xlim(0.4, max(8, *numbers) + 0.6)
    axes.set_xlabel("attempts")
    axes.set_ylim(0, 1.12)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return chart.svg(label)


# What charts and sentences both say
_NAMES = {"wait": "waits", "run": "run times", "turnaround": "arrival to end"}


def kinds(figures: ReportFigures) -> list[Row]:
    """Run times by kind, that with the most attempts first."""
    return sorted(figures.rows("by_kind", measure="run"), key=lambda row: (-row["n"], row["kind"]))


def within_attempts(figures: ReportFigures) -> list[tuple[int, float]]:
    """(attempts, the share that succeeded within that number of attempts of the messages that succeeded or failed)."""
    rows, ended = figures.rows("retries"), figures.ended()
    total = ended.get("succeeded", 0) + ended.get("failed", 0)
    most = max((row["attempts"] for row in rows if row["state"] == "succeeded"), default=0)
    good = [sum(r["n"] for r in rows if r["state"] == "succeeded" and r["attempts"] == n) for n in range(most + 1)]
    return [(n, upto / total) for n, upto in enumerate(accumulate(good)) if n]


def hours_of_week(figures: ReportFigures) -> dict[tuple[int, int], float]:
    """Messages by (day of the week, hour) in UTC, Monday being 0: the mean of all such hours."""
    sums: dict[tuple[int, int], float] = {}
    for row in figures.rows("offered"):
        begins = moment(row["period"])
        sums[begins.weekday(), begins.hour] = sums.get((begins.weekday(), begins.hour), 0) + row["messages"]
    window = figures.window.recent
    hours = [moment(hour * HOUR) for hour in range(int(window.since // HOUR), int(-(-window.until // HOUR)))]
    return {slot: total / sum((h.weekday(), h.hour) == slot for h in hours) for slot, total in sums.items()}


def has_weeks(figures: ReportFigures) -> bool:
    """Is there enough for a chart of the hours of the week: a week, and messages?"""
    return figures.window.seconds >= 7 * DAY and any(row["messages"] for row in figures.rows("offered"))


def has_tail(figures: ReportFigures) -> bool:
    """Are there enough messages that 1 in 1,000 says something?"""
    whole = figures.overall("turnaround")
    return whole is not None and whole["n"] >= _MANY


def falling(figures: ReportFigures, plan: Plan) -> list[tuple[int, float]]:
    """The wait in the busiest period by the number of threads: (threads, seconds).

    Up to the first number at which nobody waits: more of them change nothing.
    """
    points = curve(plan.peak.traffic, figures.target, max(plan.threads, plan.peak_threads))
    nobody = next((place for place, (_, seconds) in enumerate(points) if seconds < _NO_WAIT), len(points))
    return points[: max(nobody + 1, 2)]


def _spreads(axes: Axes, places: dict[int, Row], colour: str) -> None:
    for place, row in places.items():
        p50, p95, p99 = (_visible(row[name]) for name in ("p50", "p95", "p99"))
        axes.plot([p50, p99], [place, place], color=colour, alpha=0.35, linewidth=4, clip_on=False)
        axes.plot([p50, p95, p99], [place] * 3, color=colour, linestyle="none", marker="o", markersize=4, clip_on=False)
    ends = [_visible(row[name]) for row in places.values() for name in ("p50", "p99")]
    duration_axis(axes, "x", min(ends, default=0.01), max(ends, default=1))


def _tail(kind: str) -> str:
    """A path by its end, which is what tells it from others."""
    return kind if len(kind) <= _WIDE else f"…{kind[1 - _WIDE :]}"


def _visible(seconds: float) -> float:
    """A logarithmic axis has no zero."""
    return max(seconds, _SHORTEST)


def _alone(found: Sequence[object | None]) -> list[int]:
    """The places of what has nothing on either side: it needs a dot, since no line leads to it."""
    around = [None, *found, None]
    return [
        place
        for place, (before, here, after) in enumerate(zip(around, found, around[2:], strict=False))
        if here is not None and before is None and after is None
    ]


def _moments(seconds: Sequence[float]) -> list[float]:
    """As matplotlib counts: days since 1970."""
    return [second / DAY for second in seconds]


def _middles(figures: ReportFigures) -> list[float]:
    return _moments([bucket + figures.window.width / 2 for bucket in figures.window.buckets()])
