"""Figures: the measured values of several rounds, with their median and range."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Figure:
    """One quantity, measured in several rounds."""

    scenario: str
    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Figure:
        """The inverse of `as_dict`."""
        return cls(**{name: value for name, value in record.items() if name != "median"})

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "median": self.median}


def table(figures: Iterable[Figure]) -> Table:
    drawn = Table("scenario", "who", "median", "lowest", "highest", "", "set-up")
    for column in (2, 3, 4):
        drawn.columns[column].justify = "right"
    before = ""
    for figure in figures:
        if figure.scenario != before:
            drawn.add_section()
        numbers = [text_of(number) for number in (figure.median, min(figure.rounds), max(figure.rounds))]
        drawn.add_row(
            figure.scenario if figure.scenario != before else "", figure.name, *numbers, figure.unit, figure.note
        )
        before = figure.scenario
    return drawn


def text_of(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
