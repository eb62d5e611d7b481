"""What a seed says: who does what, in which order, and which faults come when. One integer says all of it.

Its lowest 32 bits choose the scenario; 8 more choose another order of the same; the rest are the numbers of the
operations and faults that are left out, by which a failing one was made short.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.faults.clients import Fault

SEED_BITS, ORDER_BITS = 32, 8
#: Faults come before one of so many steps.
STEPS = 30
#: The clock goes on by more than a lease.
JUMP = "jump"
#: How often a worker loses its lease before its next call.
OVERSLEEPS = 0.2
POLICIES = ["replace", "replace", "keep", "preserve_time", "earliest", "latest"]
KEYS = ["a", "b"]
#: Calls that meet about one key are what there is to find.
OFTEN = ["a", "a", "a", "b"]


class Operation(NamedTuple):
    verb: str
    given: dict

    def __str__(self):
        return f"{self.verb}({', '.join(f'{name}={value}' for name, value in self.given.items())})"


class Scenario(NamedTuple):
    """`before`: what one client does alone. `programs`: what each client does then. `faults`: by their steps."""

    before: list[Operation]
    programs: list[list[Operation]]
    faults: list[tuple[int, str]]
    draws: random.Random

    @property
    def size(self):
        return sum(map(len, self.programs)) + len(self.faults)


def parts(number):
    """The seed, the order, and what is left out."""
    seed, rest = number & (1 << SEED_BITS) - 1, number >> SEED_BITS
    return seed, rest & (1 << ORDER_BITS) - 1, rest >> ORDER_BITS


def numbered(seed, order=0, without=0):
    """The integer of these parts."""
    return seed | order << SEED_BITS | without << SEED_BITS + ORDER_BITS


def scenario_of(number, write):
    """`write(draws)`: the operations before, and the programs."""
    seed, order, without = parts(number)
    draws = random.Random(seed)
    before, programs = write(draws)
    kinds = [JUMP, JUMP, *Fault]
    faults = [(draws.randrange(STEPS), draws.choice(kinds)) for _ in range(draws.choice([0, 0, 1, 1, 2, 3]))]
    kept = iter(range(10**6))
    programs = [[one for one in program if not without >> next(kept) & 1] for program in programs]
    faults = [one for one in faults if not without >> next(kept) & 1]
    return Scenario(before, programs, faults, random.Random(f"{seed} {order}"))


def queue_programs(draws):
    """Producers, workers and operators of a queue with two keys."""
    before = [_offer(draws) for _ in range(draws.choice([1, 2, 2]))]
    roles = [_worker, draws.choice([_worker, _worker, _producer]), *draws.sample([_worker, _producer, _operator], 2)]
    return before, [role(draws) for role in roles[: draws.choice([2, 3, 3, 4])]]


def _offer(draws):
    given = {"payload": str(draws.randrange(3)), "delay": draws.choice([0, 0, -5, 3]), "policy": draws.choice(POLICIES)}
    match draws.randrange(8):
        case 0:
            return Operation("offer_both", {"keys": draws.sample(KEYS, 2), **given})
        case 1 | 2 | 3:
            return Operation(
                "offer_in_a_transaction", {"key": draws.choice(OFTEN), **given, "commits": draws.random() < 0.7}
            )
        case _:
            return Operation("offer", {"key": draws.choice(OFTEN), **given})


def _producer(draws):
    ways = [_offer, _offer, _offer, _drop]
    return [draws.choice(ways)(draws) for _ in range(draws.randint(1, 3))]


def _drop(draws):
    verb, key = draws.choice(["drop", "drop_of_queue", "drop_in_a_transaction"]), draws.choice(OFTEN)
    commits = {"commits": draws.random() < 0.7} if verb == "drop_in_a_transaction" else {}
    return Operation(verb, {"key": key, **commits})


def _worker(draws):
    steps = [Operation("claim", {"limit": draws.choice([1, 2])})]
    for _ in range(draws.randint(1, 3)):
        how = draws.choice(["finish", "finish", "fail", "retry", "give back", "discard"])
        if draws.random() < OVERSLEEPS:
            steps.append(Operation("oversleep", {}))
        commits = {"commits": draws.random() < 0.7}
        steps.append(
            draws.choice(
                [
                    *[Operation("end", {"how": how})] * 4,
                    *[Operation("end_and_claim", {"how": how})] * 2,
                    *[Operation("renew", {})] * 2,
                    Operation("end_in_a_transaction", {"how": how, **commits}),
                    Operation("release", {}),
                    Operation("claim", {"limit": 1}),
                ]
            )
        )
    return steps


def _operator(draws):
    ways = ["stop", "reschedule", "cancel", "redrive"]
    steps = []
    for _ in range(draws.randint(1, 2)):
        verb = draws.choice(ways)
        steps.append(Operation(verb, {"key": draws.choice(OFTEN)}))
        if verb in ("reschedule", "cancel") and draws.random() < 0.6:
            steps.append(Operation("undo", {}))
    return steps
