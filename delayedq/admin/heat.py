"""Cells of heat maps: their colours, by how much each has of the most."""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

LEVELS = 5


class Cell(NamedTuple):
    """`level`: 0 (nothing) to LEVELS. `title`: its tooltip. `query`: that of the list of its messages."""

    level: int = 0
    title: str = ""
    stampede: bool = False
    query: str = ""


def level(number: float, most: float) -> int:
    """The square root keeps small numbers visible beside large ones. A sum of floats may be above the most by a bit."""
    return min(LEVELS, ceil(LEVELS * sqrt(number / most))) if number else 0
