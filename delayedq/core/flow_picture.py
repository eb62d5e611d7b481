"""Where the steps of a flow stand in its picture, and which of them its duration follows from."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Of the box of a step, and between two of them, in pixels.
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 190, 52, 56, 18, 10


class Place(NamedTuple):
    """The upper left corner of a box."""

    x: int
    y: int


class Picture(NamedTuple):
    """The boxes of the steps by their numbers, the lines between them, and the size of all."""

    places: dict[int, Place]
    lines: list[tuple[int, int, str]]
    width: int
    height: int


def picture(after: Mapping[int, Sequence[int]]) -> Picture:
    """The picture of steps with these predecessors, from left to right: each in a column behind all of those.

    A line passes behind no box: in each column between its ends it has a place of its own, as a box would have. Those
    of one step share it.
    """
    columns: dict[int, int] = {}
    rows: dict[int, int] = {}
    places: dict[int, Place] = {}
    passed: dict[tuple[int, int], Place] = {}
    for number in sorted(after):
        column = columns[number] = max((columns[before] + 1 for before in after[number]), default=0)
        for before in after[number]:
            for between in range(columns[before] + 1, column):
                if (before, between) not in passed:
                    passed[before, between] = _next_place(rows, between)
        places[number] = _next_place(rows, column)
    lines = []
    for number in after:
        for before in after[number]:
            way = [passed[before, between] for between in range(columns[before] + 1, columns[number])]
            lines.append((before, number, _line([places[before], *way, places[number]])))
    width = 2 * MARGIN + len(rows) * (WIDTH + ACROSS) - ACROSS
    return Picture(places, lines, width, 2 * MARGIN + max(rows.values(), default=1) * (HEIGHT + DOWN) - DOWN)


def _next_place(rows: dict[int, int], column: int) -> Place:
    row = rows.get(column, 0)
    rows[column] = row + 1
    return Place(MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))


def _line(way: Sequence[Place]) -> str:
    """The path of a line from the first of these boxes to the last, through the places of the others."""
    path = f"M{way[0].x + WIDTH},{way[0].y + HEIGHT // 2}"
    for start, end in pairwise(way):
        x, y, to_x, to_y = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
        middle = (x + to_x) // 2
        path += f" H{x} C{middle},{y} {middle},{to_y} {to_x},{to_y}"
    return path


def critical_path(after: Mapping[int, Sequence[int]], ended: Mapping[int, float]) -> set[int]:
    """The steps without which the flow would have ended earlier: from the last one to end, always the last before it.

    ended: when each step ended, of those that have.

    >>> sorted(critical_path({0: [], 1: [], 2: [0, 1]}, {0: 1.0, 1: 5.0, 2: 6.0}))
    [1, 2]
    """
    path: set[int] = set()
    candidates = list(ended)
    while candidates:
        last = max(candidates, key=lambda number: (ended[number], number))
        path.add(last)
        candidates = [before for before in after[last] if before in ended]
    return path
