"""How long a failed attempt keeps its message waiting."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import inf

#: From the number of the attempt that failed, the first being 1, to the delay before the next.
Backoff = Callable[[int], timedelta]


@dataclass(frozen=True, slots=True)
class Constant:
    delay: timedelta

    def __post_init__(self) -> None:
        _require_timedelta("delay", self.delay)
        if self.delay < timedelta(0):
            raise ValueError(f"A backoff's delay can't be negative: {self.delay}.")

    def __call__(self, attempt: int) -> timedelta:  # noqa: ARG002 - the same after each
        return self.delay


@dataclass(frozen=True, slots=True)
class Exponential:
    """`initial`, then `factor` times as long after each attempt, up to `maximum`.

    The share `jitter` of the delay is random, so that messages that failed together do not come back together. One
    half is the "equal jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; 1 is his
    "full jitter", 0 none.
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


def as_backoff(value: object) -> Backoff:
    if isinstance(value, timedelta):
        return Constant(value)
    if isinstance(value, type):
        raise TypeError(f"A backoff is an instance: {value.__name__}(), not {value.__name__}.")
    if callable(value):
        return value
    raise TypeError(f"A backoff is a timedelta, or takes the number of an attempt and returns one: {value!r}.")


def _require_timedelta(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise TypeError(f"A backoff's {name} is a timedelta: {value!r}.")
