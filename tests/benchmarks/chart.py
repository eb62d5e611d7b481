"""The chart of docs/benchmarks.md: medians of all contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.figures import Figure

OURS, FLOOR, PEER = "#0c7c59", "#b8c4bf", "#8d99ae"
COLOURS = {"delayedq": OURS, "delayedq_defaults": OURS, "floor": FLOOR, "floor_django": FLOOR}


def bars(figures: list[Figure], path: Path) -> None:
    """Medians as bars, with the lowest and highest round as whiskers; one panel per scenario."""
    scenarios = list(dict.fromkeys(figure.scenario for figure in figures))
    heights = [sum(figure.scenario == scenario for figure in figures) + 1.5 for scenario in scenarios]
    drawing, panels = plt.subplots(
        len(scenarios), figsize=(8, 0.3 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for scenario, panel in zip(scenarios, panels[:, 0], strict=True):
        _panel(panel, scenario, [figure for figure in figures if figure.scenario == scenario])
    drawing.savefig(path, dpi=144)
    plt.close(drawing)


def _panel(panel: plt.Axes, title: str, figures: list[Figure]) -> None:
    figures = sorted(figures, key=lambda figure: figure.median)
    medians = [figure.median for figure in figures]
    whiskers = [[m - min(f.rounds) for f, m in zip(figures, medians, strict=True)]]
    whiskers.append([max(f.rounds) - m for f, m in zip(figures, medians, strict=True)])
    colours = [COLOURS.get(figure.name, PEER) for figure in figures]
    panel.barh([figure.name for figure in figures], medians, xerr=whiskers, color=colours, ecolor="#555", height=0.7)
    for row, (figure, median) in enumerate(zip(figures, medians, strict=True)):
        panel.annotate(
            f"{median:,.0f}", (max(figure.rounds), row), xytext=(5, 0), textcoords="offset points", va="center", size=8
        )
    panel.set_title(f"{title}, messages/s", loc="left", size=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.margins(x=0.12)
