"""Where steps and lines stand in the picture of a flow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayedq.flows.rules import HEIGHT, WIDTH, picture


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 9))
    return {number: sorted(draw(st.sets(st.integers(0, number - 1)))) if number else [] for number in range(size)}


def points(line):
    return [tuple(map(int, pair.split(","))) for pair in re.findall(r"\d+,\d+", line)]


@given(graphs())
def test_no_box_stands_on_another_or_in_the_way_of_a_line(after):
    drawn = picture(after)
    assert len(set(drawn.places.values())) == len(after)
    for place in drawn.places.values():
        assert place.x + WIDTH < drawn.width
        assert place.y + HEIGHT < drawn.height
    for before, number, line in drawn.lines:
        start, *_, end = points(line)
        assert start == (drawn.places[before].x + WIDTH, drawn.places[before].y + HEIGHT // 2)
        assert end == (drawn.places[number].x, drawn.places[number].y + HEIGHT // 2)
        passed = set(points(line)[1:-1])  # it enters and leaves each column there
        others = {(one.x, one.y + HEIGHT // 2) for key, one in drawn.places.items() if key not in {before, number}}
        assert passed & others == set()


@pytest.mark.parametrize(
    ("after", "rows"), [({0: [], 1: [0], 2: [1]}, 1), ({0: [], 1: [0], 2: [0, 1]}, 2), ({0: [], 1: [], 2: [0, 1]}, 2)]
)
def test_a_line_that_passes_a_column_has_a_row_there(after, rows):
    drawn = picture(after)
    assert drawn.height == picture({number: [] for number in range(rows)}).height
