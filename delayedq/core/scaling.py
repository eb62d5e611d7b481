"""Compute how many threads keep the wait of due messages below a target, and when a fleet grows and shrinks.

What arrives takes as many threads as Erlang C says (`core.scaling`); what is due already is worked off in the time that
is left of the target. A fleet grows at once, and shrinks to the most that was wanted in the last `patience` seconds, so
that a pause between two bursts ends no process.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, floor, inf, log, sqrt
from typing import NamedTuple

# How long messages wait for a free thread, as a function of the number of threads (Erlang C).
#
# `load` is the work in seconds that arrives per second, that is, the average number of busy threads, in erlangs. The
# Erlang C formula gives the probability that all of n threads are busy, for a Poisson process and exponential run
# times (M/M/c). The Allen-Cunneen factor, the mean of both squared coefficients of variation, scales the wait for
# arrivals and run times that vary more or less than that.
#
# A. O. Allen, "Probability, Statistics and Queueing Theory", 2nd edition, 1990, section 5.4.


def chance_to_wait(threads: int, load: float) -> float:
    """Erlang C: the share of messages that find all threads busy; 1 if there are too few for the load."""
    if load >= threads:
        return 1.0
    blocked = 1.0
    for busy in range(1, threads + 1):
        blocked = load * blocked / (busy + load * blocked)
    return blocked / (1 - load / threads * (1 - blocked))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The load of a queue: attempts per second, and the mean run time in seconds.

    `arrival_variability` and `run_variability` are squared coefficients of variation: 0 is perfectly regular, 1 is
    random (Poisson arrivals, exponential run times), above 1 is bursty. Raises ValueError for a value that is negative
    or not finite.
    """

    rate: float
    run_seconds: float
    arrival_variability: float = 1.0
    run_variability: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} is finite and not negative, unlike {getattr(self, name)}.")

    @property
    def load(self) -> float:
        """The average number of busy threads (erlangs)."""
        return self.rate * self.run_seconds

    def mean_wait(self, threads: int) -> float:
        """Mean wait of all messages in seconds; infinite if there are too few threads."""
        return chance_to_wait(threads, self.load) * self._mean_of_those_who_wait(threads) if self.load else 0.0

    def wait(self, quantile: float, threads: int) -> float:
        """The wait in seconds that this share (0 to 1) of messages does not exceed; infinite for too few threads."""
        chance = chance_to_wait(threads, self.load)
        if chance <= 1 - quantile:
            return 0.0
        return self._mean_of_those_who_wait(threads) * log(chance / (1 - quantile))

    def threads_for(self, seconds: float, quantile: float) -> int:
        """The smallest number of threads (at least 1) with which this share of messages waits at most `seconds`.

        Raises ValueError for a quantile that is not between 0 and 1, or a negative time.
        """
        if not 0 < quantile < 1 or seconds < 0:
            raise ValueError(f"A share between 0 and 1 waits 0 seconds or more: got {quantile} and {seconds}.")
        fewest = floor(self.load) + 1
        spread = sqrt(self.load * -log(1 - quantile)) - log(1 - quantile)
        enough = range(fewest, fewest + 4 * int(spread + 1))  # at its end the wait is practically zero
        return enough[bisect_left(enough, True, key=lambda threads: self.wait(quantile, threads) <= seconds)]

    def _mean_of_those_who_wait(self, threads: int) -> float:
        """The waits of those that wait are exponentially distributed."""
        if self.load >= threads:
            return inf
        return self.run_seconds / (threads - self.load) * (self.arrival_variability + self.run_variability) / 2


# Scaling


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
