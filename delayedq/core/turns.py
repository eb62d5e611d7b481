"""Fair turns: which channels get the places that there are. Pure functions on values.

The *turn* of a channel is the seconds of work that it had, divided by its weight. A place goes to the lowest turn.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Waiting(NamedTuple):
    """What waits in a channel: up to `most` places can be used.

    turn: where it is now. step: how much further each place takes it. owed: so many places come before those of others.
    at_once: so many places are dealt to it together.
    """

    most: int
    turn: float = 0.0
    step: float = 1.0
    owed: int = 0
    at_once: int = 1


def deal(room: int, waiting: Mapping[int, Waiting]) -> dict[int, int]:
    """Deal `room` places: first to those who are owed some, then to all; each time one (`at_once`) to the lowest turn.

    >>> deal(5, {1: Waiting(3), 2: Waiting(1), 3: Waiting(9)})
    {1: 2, 2: 1, 3: 2}
    >>> deal(6, {1: Waiting(9, step=1.0), 2: Waiting(9, step=0.5)})
    {1: 2, 2: 4}
    >>> deal(3, {1: Waiting(9), 2: Waiting(9, turn=100.0, owed=2)})
    {1: 1, 2: 2}
    >>> deal(5, {1: Waiting(9, at_once=2), 2: Waiting(9)})
    {1: 3, 2: 2}
    """
    dealt = dict.fromkeys(waiting, 0)
    line = [(one.owed <= 0, one.turn, rank, id_) for rank, (id_, one) in enumerate(waiting.items()) if one.most > 0]
    heapify(line)
    while line and room > 0:
        is_served, turn, rank, id_ = line[0]
        one = waiting[id_]
        most = one.most if is_served else min(one.most, one.owed)
        number = min(one.at_once, most - dealt[id_], room)
        dealt[id_] += number
        room -= number
        if dealt[id_] < one.most:
            heapreplace(line, (dealt[id_] >= one.owed, turn + number * one.step, rank, id_))
        else:
            heappop(line)
    return dealt
