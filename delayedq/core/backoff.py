"""Backoffs: the delay between a failed attempt and the next one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf

#: Takes the number of the failed attempt (1 is the first), returns the delay before the next one.
Backoff = Callable[[int], timedelta]


@dataclass(frozen=True, slots=True)
class Constant:
    """The same delay after each attempt. Raises TypeError or ValueError for what is no timedelta of 0 or more."""

    delay: timedelta

    def __post_init__(self) -> None:
        _require_timedelta("delay", self.delay)
        if self.delay < timedelta(0):
            raise ValueError(f"A backoff's delay can't be negative: {self.delay}.")

    def __call__(self, attempt: int) -> timedelta:  # noqa: ARG002 - the same after each
        return self.delay


@dataclass(frozen=True, slots=True)
class Exponential:
    """`initial` after the first attempt, then `factor` times the last delay after each, up to `maximum`.

    `jitter` (0 to 1) is the share of the delay that is random, so that messages that failed together are not retried
    together: 0.5 is "equal jitter" and 1 "full jitter" in the terms of Marc Brooker, "Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015. Raises TypeError or ValueError for a wrong value.

        Exponential(initial=timedelta(seconds=1), factor=2, maximum=timedelta(minutes=10))
    """

    initial: timedelta = timedelta(seconds=5)
    factor: float = 4.0
    maximum: timedelta = timedelta(hours=1)
    jitter: float = 0.5

    def __post_init__(self) -> None:
        _require_timedelta("initial", self.initial)
        _require_timedelta("maximum", self.maximum)
        if self.initial <= timedelta(0):
            raise ValueError(f"A backoff's initial delay must be above zero: {self.initial}.")
        if self.maximum < self.initial:
            raise ValueError(f"A backoff's maximum, {self.maximum}, is below its initial delay, {self.initial}.")
        if not 1 <= self.factor < inf:
            raise ValueError(f"A backoff's factor must be finite and at least 1: {self.factor}.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"A backoff's jitter is a share between 0 and 1: {self.jitter}.")

    def __call__(self, attempt: int, rng: random.Random | None = None) -> timedelta:
        draw = rng.random() if rng else random.random()  # noqa: S311 - spreads load, guards nothing
        return self._longest(attempt) * (1 - self.jitter * draw)

    def _longest(self, attempt: int) -> timedelta:
        try:
            return min(self.maximum, self.initial * float(self.factor) ** (attempt - 1))
        except OverflowError:
            return self.maximum


@dataclass(frozen=True, slots=True)
class Listed:
    """The delay after each attempt; after the last one of the list, the last again.

    Raises TypeError or ValueError for an empty list, and for what is no timedelta of 0 or more.
    """

    delays: Sequence[timedelta]

    def __post_init__(self) -> None:
        if not self.delays:
            raise ValueError("A backoff's list of delays can't be empty.")
        for delay in self.delays:
            Constant(delay)

    def __call__(self, attempt: int) -> timedelta:
        return self.delays[min(attempt, len(self.delays)) - 1]


def as_backoff(value: object) -> Backoff:
    """A timedelta as Constant, a list of them as Listed, a callable as it is.

    Raises TypeError, or ValueError for a negative timedelta or an empty list.
    """
    if isinstance(value, timedelta):
        return Constant(value)
    if isinstance(value, list | tuple):
        return Listed(value)
    if isinstance(value, type):
        raise TypeError(f"A backoff is an instance: {value.__name__}(), not {value.__name__}.")
    if callable(value):
        return value
    raise TypeError(
        f"A backoff is a timedelta, a list of them, or a function of the number of the attempt, not {value!r}."
    )


def _require_timedelta(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise TypeError(f"A backoff's {name} is a timedelta, such as timedelta(seconds=5), not {value!r}.")


# How long to wait before the next try, from the number of failures (1 is the first).


#: To reach a database that is away.
RECONNECTING = Exponential(initial=timedelta(seconds=0.1), factor=2, maximum=timedelta(seconds=10))

#: To start a process again that died soon after its start.
RESTARTING = Exponential(initial=timedelta(seconds=0.5), factor=2, maximum=timedelta(seconds=10))

#: To release messages that somebody's transaction has locked.
RELEASING = Exponential(initial=timedelta(seconds=0.05), factor=2, maximum=timedelta(seconds=1))

#: To find what a claim has leased that commits after its worker died: each search reads the whole table.
SEARCHING = Exponential(initial=timedelta(seconds=1), factor=2, maximum=timedelta(hours=1), jitter=0.0)


# Retries of work that a database has undone to end a deadlock.


#: How often a piece of work is tried in all.
TRIES = 5


def retry[R](work: Callable[[], R], is_deadlock: Callable[[Exception], bool]) -> R:
    """Do the work at most TRIES times, again only after an error of which `is_deadlock` says so.

    Raises what the last try raised, and at once any other error.
    """
    for _ in range(TRIES - 1):
        try:
            return work()
        except Exception as error:
            if not is_deadlock(error):
                raise
    return work()
