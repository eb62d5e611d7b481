"""Makes a failing schedule short: leaves out operations and faults one by one, and looks for the shortest order."""

from __future__ import annotations

from tests.faults.scenarios import ORDER_BITS, numbered, parts

#: Orders that are tried for what is left after an operation was left out; and at the end.
ORDERS, LAST_ORDERS = 8, 1 << ORDER_BITS - 2


def shrunk(world, failure):
    """The failure of the same kind with the fewest operations, and of these the one with the fewest steps."""
    if failure.is_stuck:
        return failure
    left = world.size_of(failure.number)
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for place in reversed(range(left)):
            if shorter := _without(world, failure, place):
                failure, is_shorter = shorter, True
    seed, _, without = parts(failure.number)
    found = [one for other in range(LAST_ORDERS) if (one := _again(world, failure, numbered(seed, other, without)))]
    return min([failure, *found], key=lambda one: len(one.trace))


def _without(world, failure, place):
    seed, order, without = parts(failure.number)
    if without >> place & 1:
        return None
    for other in dict.fromkeys((order, *range(ORDERS))):
        if shorter := _again(world, failure, numbered(seed, other, without | 1 << place)):
            return shorter
    return None


def _again(world, failure, number):
    """The failure of this schedule, if it is of the same kind."""
    other = world.run(number)
    return other if other is not None and other.kind == failure.kind else None
