"""The values of the arguments of `run_pipeline`."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from delayedq.conf import LONGEST
from delayedq.management.arguments import positive

if TYPE_CHECKING:
    from argparse import ArgumentParser

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
        length = timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        length = timedelta.max
    if length > LONGEST:
        raise ArgumentTypeError(f"{text[:60]!r} is longer than {LONGEST.days:,} days")
    return length


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
    """Of the last one there is, none could say where it ends."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day, such as 2013-03-08") from None
    if day == date.max:
        raise ArgumentTypeError(f"{text!r} is the last day of the calendar")
    return day


def moment(text: str) -> datetime:
    """In UTC, which is meant if it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time in ISO 8601") from None
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is outside the years 1 to 9999 in UTC") from None


def ids(text: str) -> list[int]:
    try:
        found = {int(part) for part in text.split(",")}
    except ValueError:
        raise ArgumentTypeError(f"{text[:60]!r} is not a list of numbers, as in 17,18,19") from None
    if wrong := [id_ for id_ in found if not -(2**63) <= id_ < 2**63]:
        raise ArgumentTypeError(f"{str(wrong[0])[:60]!r} is no id: it has more than 64 bits")
    return sorted(found)


# The arguments of the steps of `run_pipeline` that keep the lake.


def add_steps(steps: Any, place: ArgumentParser, lake: ArgumentParser) -> None:
    """place: the arguments of steps that run on Spark. lake: of those that need none."""
    _add_compact(steps.add_parser("compact", parents=[place], help="Join small files of the lake."))
    steps.add_parser("check", parents=[place], help="Compare the lake with its statistics and the archive's records.")
    _add_vacuum(steps.add_parser("vacuum", parents=[lake], help="Deletes files that nobody needs any more."))
    steps.add_parser("status", parents=[lake], help="Tells what the lake holds, and how far the archive is.")
    _add_restore(steps.add_parser("restore", parents=[lake], help="Puts messages of the lake back into the history."))


def _add_compact(parser: ArgumentParser) -> None:
    parser.add_argument("--small", type=positive, metavar="MB", help="Files below this size are joined (64).")


def _add_vacuum(parser: ArgumentParser) -> None:
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="Keep what is younger, as 14d (7d).")
    parser.add_argument("--force", action="store_true", help="Allow an age below 7d.")
    parser.add_argument("--dry-run", action="store_true", help="Name the files, and delete none.")


def _add_restore(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--batch", type=int, metavar="N", help="All of this batch of the archive.")
    which.add_argument("--ids", type=ids, metavar="N,N", help="These messages.")
    which.add_argument("--since", type=moment, metavar="TIME", help="What ended from then (UTC).")
    parser.add_argument("--until", type=moment, metavar="TIME", help="And before then (UTC); with --since.")
