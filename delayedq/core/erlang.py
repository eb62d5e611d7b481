"""How long messages wait for a free thread, as a function of the number of threads (Erlang C).

`load` is the work in seconds that arrives per second, that is, the average number of busy threads, in erlangs. The
Erlang C formula gives the probability that all of n threads are busy, for a Poisson process and exponential run times
(M/M/c). The Allen-Cunneen factor, the mean of both squared coefficients of variation, scales the wait for arrivals and
run times that vary more or less than that.

A. O. Allen, "Probability, Statistics and Queueing Theory", 2nd edition, 1990, section 5.4.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import floor, inf, log, sqrt


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
