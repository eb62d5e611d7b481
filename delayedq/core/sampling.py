"""Choose slices of a range that is too long to be read as a whole.

A sample is many thin slices, one in each of PARTS equal parts of the range, at an offset that differs from part to
part, so that patterns that repeat every minute or hour are neither always hit nor always missed. A count over the
slices, times `scale`, estimates the count over the range. Ranges are of integers: ids, or microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

#: How many parts a range is divided into.
PARTS = 1_000

#: Multiples of this, modulo 1, are spread evenly without repetition.
GOLDEN = (sqrt(5) - 1) / 2


class Slice(NamedTuple):
    """From `first` (included) to `last` (excluded)."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Sample:
    slices: tuple[Slice, ...]
    #: The length of the range divided by the length of all slices; 1.0 for the whole range.
    scale: float

    @property
    def is_whole(self) -> bool:
        return self.scale == 1.0

    def estimate(self, counted: int) -> int:
        return round(counted * self.scale)


def whole(first: int, last: int) -> Sample:
    return Sample((Slice(first, last),), 1.0)


def sample(first: int, last: int, share: float) -> Sample:
    """A sample of about this share (above 0) of the range; the whole range if it has at most PARTS integers."""
    length = last - first
    if share >= 1 or length <= PARTS:
        return whole(first, last)
    thin = max(1, min(round(length / PARTS * share), length // PARTS))
    edges = [first + part * length // PARTS for part in range(PARTS + 1)]
    slices = tuple(_slice(*ends, thin, part) for part, ends in enumerate(pairwise(edges)))
    return Sample(slices, length / PARTS / thin)


def _slice(start: int, end: int, thin: int, part: int) -> Slice:
    places = end - start - thin + 1
    begin = start + int(places * (part * GOLDEN % 1))
    return Slice(begin, begin + thin)
