"""How charts look: drawn by matplotlib, as SVG whose colours are those of the page, in light and in dark."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from delayedq.pipeline.report import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_MANY = 8


class Chart:
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
    locator = AutoDateLocator(minticks=2 if ticks < _MANY else 4, maxticks=ticks, tz="UTC")  # type: ignore[no-untyped-call]
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
