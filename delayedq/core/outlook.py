"""When a backlog will be empty, from how much of it ended and how much fell due lately, and how sure that is."""

from __future__ import annotations

from enum import StrEnum
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Student's t for a 95 % interval, by the number of measurements less one.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Trend(StrEnum):
    """What a backlog does: there is none, it shrinks, it does not, or what was measured does not tell."""

    EMPTY = "empty"
    SHRINKS = "shrinks"
    STAYS = "stays"
    UNSURE = "unsure"


class Outlook(NamedTuple):
    """In how many seconds a backlog will be empty, if the rates remain: `about` then, between the others with 95 %
    probability. All are None unless it shrinks; if that is unsure, only `earliest` is known.
    """

    trend: Trend
    about: float | None = None
    earliest: float | None = None
    latest: float | None = None


def outlook(due: int, ended: Sequence[int], came: Sequence[int], width: float) -> Outlook:
    """`due`: how much waits. `ended` and `came`: what left the backlog and fell due, in each of 2 to 10 equal parts of
    the time before, of `width` seconds each.

    >>> outlook(600, [70, 70], [10, 10], 60.0).about
    600.0
    """
    if due <= 0:
        return Outlook(Trend.EMPTY)
    net = [(out - into) / width for out, into in zip(ended, came, strict=True)]
    mean = fmean(net)
    error = _T[len(net) - 2] * stdev(net) / sqrt(len(net))
    slowest, fastest = mean - error, mean + error
    if fastest <= 0:
        return Outlook(Trend.STAYS)
    if slowest <= 0:
        return Outlook(Trend.UNSURE, earliest=due / fastest)
    return Outlook(Trend.SHRINKS, due / mean, due / fastest, due / slowest)
