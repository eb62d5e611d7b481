"""Argument types that several commands use."""

from __future__ import annotations

from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A whole number over 0. Raises ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)
