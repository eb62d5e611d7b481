"""Charts: the browser draws them from JSON; a table with the same numbers is there for screen readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from delayedq.operations.wording import exact, grouped, seconds, units_of_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Series:
    """A line or a set of bars. `name`: chooses its colour. `unit`: "" for counts, "s" for seconds. None is a gap."""

    name: str
    label: str
    values: Sequence[float | None]
    unit: str = ""

    @property
    def texts(self) -> list[str]:
        return [seconds(value) if self.unit else count(value) for value in self.values]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and its table. `name`: its id in the page. `bars`: draw bars instead of lines."""

    name: str
    title: str
    times: Sequence[datetime]
    series: Sequence[Series]
    bars: bool = False
    #: Each time in words, and the texts of all series.
    rows: list[tuple[str, list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        texts = zip(*(series.texts for series in self.series), strict=True)
        object.__setattr__(self, "rows", [(exact(at), list(row)) for at, row in zip(self.times, texts, strict=True)])

    def drawn(self) -> dict[str, Any]:
        """The chart as JSON values for `dashboard.js`."""
        return {
            "name": self.name,
            "title": self.title,
            "zone": timezone.get_current_timezone_name(),
            "times": [at.timestamp() for at in self.times],
            "bars": self.bars,
            "series": [
                {"name": s.name, "label": s.label, "values": list(s.values), "unit": s.unit} for s in self.series
            ],
            "units": units_of_seconds(),
        }


def count(number: float | None) -> str:
    return "-" if number is None else grouped(number)
