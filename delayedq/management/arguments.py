"""Argument types that several commands use."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from delayedq.core.other_names import FLAGS, hint
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from argparse import ArgumentParser

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def named(parser: ArgumentParser) -> ArgumentParser:
    """The parser, whose error for a flag of another framework names ours."""
    error = parser.error

    def explained(message: str) -> NoReturn:
        flag = message.removeprefix("unrecognized arguments: ").split(" ")[0].partition("=")[0]
        if not flag.startswith("--"):
            flag = flag[:2]  # as in -c4
        error(f"{message}.{hint(flag, FLAGS)}" if flag in FLAGS else message)

    parser.error = explained  # type: ignore[method-assign]  # Django makes the parser
    return parser


def positive(text: str) -> int:
    """A whole number over 0. Raises ArgumentTypeError for anything else."""
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)


def processes(text: str) -> tuple[int, int]:
    """A number of processes, or the fewest and the most, as in 1-8. Raises ArgumentTypeError."""
    fewest, dash, most = text.partition("-")
    bounds = positive(fewest), positive(most if dash else fewest)
    if bounds[0] > bounds[1]:
        raise ArgumentTypeError(f"{text!r} is not a range: write the lower number first, as in 1-8")
    return bounds


def scale_on(text: str) -> dict[str, float]:
    """latency=30s, and maybe patience=60s, with a comma between; in seconds. Raises ArgumentTypeError."""
    parts = [one.partition("=") for one in text.split(",")]
    given = {name: age(value).total_seconds() for name, _, value in parts}
    if len(given) < len(parts):
        raise ArgumentTypeError(f"{text!r} gives one name twice: write latency=30s, or latency=30s,patience=60s")
    if unknown := given.keys() - {"latency", "patience"}:
        raise ArgumentTypeError(f"{unknown.pop()!r} is unknown: write latency=30s, or latency=30s,patience=60s")
    if not given.get("latency"):
        raise ArgumentTypeError("give a latency above 0, as in latency=30s")
    return given


def seconds(text: str) -> timedelta:
    """A number of seconds over 0, as in 2.5. Raises ArgumentTypeError for anything else."""
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        duration = timedelta()
    if duration <= timedelta():
        raise ArgumentTypeError(f"{text!r} is not a number of seconds over 0")
    return duration


def age(text: str) -> timedelta:
    """A number with its unit, as in 30d, 1.5h or 0s. Raises ArgumentTypeError for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text)
    if not match:
        raise ArgumentTypeError(f"{text!r} is not an age: write a number and one of s, m, h, d and w, as in 30d or 12h")
    try:
        return timedelta(**{UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long: an age is at most 999999999d") from None


def queue_names(text: str) -> tuple[str, ...] | None:
    """Names of queues of tasks with commas between; None for "*", which is all. Raises ArgumentTypeError."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ArgumentTypeError("name at least one queue, or leave it out for all")
    if bare := [name for name in names if BARE in name]:
        raise ArgumentTypeError(f"{bare[0]!r} is a bare queue: its messages are not tasks, and workers do not serve it")
    return None if names == ("*",) else names


def worker_name(text: str) -> str:
    """A part of a worker's name. Raises ArgumentTypeError for what a log or a page could not show as it is."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text):
        raise ArgumentTypeError(
            f"{text!r} is not a valid name: use 1 to 100 letters, digits, dots, dashes and underscores"
        )
    return text
