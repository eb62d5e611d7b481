"""How many threads and processes keep the wait of due messages below a target, and when a fleet grows and shrinks.

What arrives takes as many threads as Erlang C says (`core.erlang`); what is due already is worked off in the time that
is left of the target. A fleet grows at once, and shrinks to the most that was wanted in the last `patience` seconds, so
that a pause between two bursts ends no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from delayedq.core.erlang import Traffic

#: This share of the messages is to start within the target.
QUANTILE = 0.95
#: However late the oldest message is, the backlog is worked off in this part of the target, not sooner.
SOONEST = 0.25
#: A fleet that is late grows by at most this factor at once: more than the model says, as the model must be wrong.
GROWTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of the workers of one database. Messages that wait for a limit count as traffic when they end only.

    oldest_due: for how many seconds the first claimable message has been due. due: how many are. arrivals: messages
    that fall due per second. run_seconds: how long one runs, on average; 0: nothing has ended lately. running: how many
    run now.
    """

    oldest_due: float = 0.0
    due: int = 0
    arrivals: float = 0.0
    run_seconds: float = 0.0
    running: int = 0

    @property
    def is_none(self) -> bool:
        return not (self.due or self.arrivals or self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """From `lowest` to `highest` processes with `threads` threads each. `target`, `patience`: seconds.

    Raises ValueError.
    """

    lowest: int
    highest: int
    target: float
    threads: int
    patience: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest:
            raise ValueError(
                f"The lowest number of processes is from 1 to the highest, not {self.lowest}-{self.highest}."
            )
        if self.target <= 0 or self.patience < 0:
            raise ValueError(
                f"The latency is above 0 s, and the patience is not negative: {self.target}, {self.patience}."
            )


class Scale(NamedTuple):
    """How many processes a fleet has, and what was wanted lately: (moment, processes), ever fewer."""

    processes: int
    wanted: tuple[tuple[float, int], ...] = ()


def threads_needed(demand: Demand, target: float) -> int:
    """The threads with which messages start within `target` seconds; 0 if there is nothing to do.

    >>> threads_needed(Demand(due=600, run_seconds=1.0), 30.0)
    20
    """
    if demand.is_none:
        return 0
    traffic = Traffic(demand.arrivals, demand.run_seconds)
    steady = traffic.threads_for(target, QUANTILE) if traffic.load else 1
    seconds = max(target - demand.oldest_due, SOONEST * target)
    return max(steady, ceil(traffic.load + demand.due * demand.run_seconds / seconds))


def scaled(before: Scale, demand: Demand, scaling: Scaling, now: float) -> Scale:
    """The next scale of a fleet. `now`: seconds on any clock that does not go back."""
    wanted = ceil(threads_needed(demand, scaling.target) / scaling.threads)
    if demand.oldest_due > scaling.target:
        wanted = max(wanted, GROWTH * before.processes)
    wanted = min(max(wanted, scaling.lowest), scaling.highest)
    recent = (
        *((at, most) for at, most in before.wanted if most > wanted and now - at < scaling.patience),
        (now, wanted),
    )
    return Scale(max(wanted, min(before.processes, recent[0][1])), recent)
