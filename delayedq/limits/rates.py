"""The arithmetic of rates: how many messages may start now, and when the next one may. Pure functions on values.

A *token bucket* holds `burst` tokens and gains `count` of them in each `per`. Each start takes one; without one, a
message waits. What is stored of it is how many tokens it had when: a rate that is changed counts from then on, at
once.

In a *window*, `count` messages may start, whenever: windows are as long as `per`, and one begins at 1970-01-01 UTC.
What is stored is how many have started, as a negative number of tokens: so a count that is changed holds at once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple

from delayedq.limits.rules import FARTHEST, Rate

if TYPE_CHECKING:
    from collections.abc import Iterable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: What rounding may take from a token.
_GRAIN = 1e-12

#: The same, in microseconds: an instant that is whole but for rounding is itself.
_ROUNDED = 1e-3


class TokenBucket(NamedTuple):
    """How many tokens a bucket had at that moment."""

    tokens: float
    at: datetime


def tokens(rate: Rate, bucket: TokenBucket | None, now: datetime) -> float:
    """How many tokens there are now; a bucket that was never used (None) is full."""
    if bucket is None:
        return rate.size
    if rate.window:
        is_over = _window(rate, now) > _window(rate, bucket.at)
        return rate.count if is_over else rate.count + min(0.0, bucket.tokens)
    gained = max(0.0, (now - bucket.at).total_seconds() / rate.interval)
    return min(rate.size, max(0.0, bucket.tokens) + gained)


def _window(rate: Rate, moment: datetime) -> int:
    return (moment - _EPOCH) // rate.per


def startable(rate: Rate, bucket: TokenBucket | None, now: datetime) -> int:
    """How many messages may start now."""
    return max(0, floor(tokens(rate, bucket, now) + _GRAIN))


def after(rate: Rate, bucket: TokenBucket | None, now: datetime, started: int) -> TokenBucket:
    """The bucket after so many starts."""
    moment = now if bucket is None else max(now, bucket.at)
    return TokenBucket(tokens(rate, bucket, now) - started - (rate.count if rate.window else 0), moment)


def release_at(rate: Rate, bucket: TokenBucket | None, now: datetime, wanted: float = 1.0) -> datetime:
    """The first moment at which there are `wanted` tokens (1: the next message may start)."""
    moment = now if bucket is None else max(now, bucket.at)
    missing = wanted - tokens(rate, bucket, now) - _GRAIN
    if missing <= 0:
        return moment
    if rate.window:
        return _EPOCH + (_window(rate, moment) + 1) * rate.per
    seconds = missing * rate.interval
    if seconds >= FARTHEST.total_seconds():
        return moment + FARTHEST
    return moment + timedelta(microseconds=ceil(seconds * 1e6 - _ROUNDED))


def last_start(
    rate: Rate, bucket: TokenBucket | None, now: datetime, arrivals: Iterable[tuple[datetime, int]]
) -> datetime:
    """The earliest moment at which the last of these messages may start: so many that are due at each, in that order.

    A time beyond FARTHEST is told as that.
    """
    moment, latest = now, now + FARTHEST
    for due, number in arrivals:
        moment, bucket = _start_all(rate, bucket, max(moment, due), number, latest)
    return moment


def _start_all(
    rate: Rate, bucket: TokenBucket | None, now: datetime, number: int, latest: datetime
) -> tuple[datetime, TokenBucket]:
    """When the last of `number` messages starts that are due by now, and the bucket then."""
    missing = number - tokens(rate, bucket, now)
    if missing <= _GRAIN:
        return now, after(rate, bucket, now, number)
    if not rate.window:
        moment = min(release_at(rate, bucket, now, number), latest)
        return moment, TokenBucket(max(0.0, (moment - now).total_seconds() / rate.interval - missing), moment)
    windows = ceil(missing / rate.count)
    if windows > (latest - now) / rate.per:
        return latest, TokenBucket(-rate.count, latest)
    moment = _EPOCH + (_window(rate, now) + windows) * rate.per
    return moment, TokenBucket((windows - 1) * rate.count - missing, moment)
