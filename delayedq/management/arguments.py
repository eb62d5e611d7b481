"""Values of arguments that more than one command takes."""

from __future__ import annotations

from argparse import ArgumentTypeError


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)
