"""The values of the arguments of `run_pipeline`."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def pair(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise ArgumentTypeError(f"{text!r} is not NAME=SOURCE")
    return name, source


def duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a number and one of s, m, h and d, as in 12h")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long") from None


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number over 0")
    return number


def share(text: str) -> float:
    number = positive_number(text)
    if number >= 1:
        raise ArgumentTypeError(f"{text!r} is not a share below 1")
    return number


def day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day, such as 2013-03-08") from None


def moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time in ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def ids(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ArgumentTypeError(f"{text[:60]!r} is not a list of numbers, as in 17,18,19") from None
