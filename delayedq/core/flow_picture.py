"""Where the steps of a flow stand in its picture, and which of them its duration follows from."""

from __future__ import annotations

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
    """The picture of steps with these predecessors, from left to right: each in a column behind all of those."""
    columns: dict[int, int] = {}
    rows: dict[int, int] = {}
    places = {}
    for number in sorted(after):
        column = columns[number] = max((columns[before] + 1 for before in after[number]), default=0)
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[number] = Place(MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))
    lines = [(before, number, _line(places[before], places[number])) for number in after for before in after[number]]
    width = 2 * MARGIN + len(rows) * (WIDTH + ACROSS) - ACROSS
    return Picture(places, lines, width, 2 * MARGIN + max(rows.values(), default=1) * (HEIGHT + DOWN) - DOWN)


def _line(start: Place, end: Place) -> str:
    """The path of a line from one box to another."""
    x, y, to_x, to_y = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    middle = (x + to_x) // 2
    return f"M{x},{y} C{middle},{y} {middle},{to_y} {to_x},{to_y}"


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
