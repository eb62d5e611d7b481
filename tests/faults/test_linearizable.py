"""The checker by itself: calls on a number that is set and read."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.faults.linearizable import is_linearizable


class Call(NamedTuple):
    began: int
    ended: int
    sets: int | None = None
    reads: int | None = None


def outcomes(number, call):
    if call.sets is not None:
        return [call.sets]
    return [number] if number == call.reads else []


def explained(*calls, left=None):
    return is_linearizable(calls, outcomes, lambda number: left in (None, number), 0)


ONE, TWO = Call(1, 2, sets=1), Call(3, 4, sets=2)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [ONE, Call(3, 4, reads=1)],
        [Call(1, 4, sets=1), Call(2, 3, reads=0)],
        [Call(1, 4, sets=1), Call(2, 3, reads=1)],
        [Call(1, 9, sets=1), Call(2, 8, sets=2), Call(3, 4, reads=2), Call(5, 6, reads=1)],
    ],
)
def test_what_some_order_explains(calls):
    assert explained(*calls)


@pytest.mark.parametrize(
    "calls",
    [
        [ONE, Call(3, 4, reads=0)],
        [ONE, TWO, Call(5, 6, reads=1)],
        [Call(1, 8, sets=1), Call(2, 3, reads=1), Call(4, 5, reads=0)],
        [Call(1, 9, sets=1), Call(2, 8, sets=2), Call(3, 4, reads=2), Call(5, 6, reads=1), Call(7, 7, reads=2)],
    ],
)
def test_what_no_order_explains(calls):
    assert not explained(*calls)


def test_what_is_left_is_explained_too():
    assert explained(ONE, TWO, left=2)
    assert not explained(ONE, TWO, left=1)
    assert explained(Call(1, 3, sets=1), Call(2, 4, sets=2), left=1)


def test_calls_that_all_overlap_take_no_time():
    """What was tried is known: 12 calls have 479,001,600 orders, and 4,096 sets."""
    assert not explained(*(Call(1, 9, sets=1) for _ in range(12)), left=2)
