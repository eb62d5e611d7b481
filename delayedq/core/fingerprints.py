"""What tells dead letters apart: their last error in one line, and a number that alike errors share. Pure functions."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from delayedq.core.error_records import known_errors

#: At most this many characters of an error are kept in its line.
LINE_LENGTH = 300
#: No fingerprint is lower.
LOWEST = -(2**63)

#: What differs between errors that are alike, and the mark that takes its place: the first that fits comes first.
_VARIABLE = {
    "uuid": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "time": r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|\s?[+-]\d\d:?\d\d)?)?",
    "address": r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])",
    # An apostrophe within a word is no quotation mark.
    "value": r"(?<!\w)'(?:[^'\\]|\\.|'(?=\w))*'(?!\w)" + r'|"(?:[^"\\]|\\.)*"' + r"|`[^`]*`|“[^”]*”|«[^»]*»",
    "hex": r"\b0x[0-9a-f]+\b|\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,}\b",
    "n": r"(?:(?<!\w)[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?",
}
_ANY = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _VARIABLE.items()), re.IGNORECASE)


class LastError(NamedTuple):
    """Of a dead letter. `error`: one line, such as "app.Overbooked: Seat 12 is taken"; "" if none was recorded.

    `fingerprint`: a signed number of 64 bits, the same for errors of one class whose lines differ only in values.
    """

    error: str
    fingerprint: int


def last_error(stored: str | None) -> LastError:
    """The last of the errors that a message stores: the class, and the first line of what it said."""
    records = known_errors(stored)
    error = _line(records[-1]) if records else ""
    return LastError(error, fingerprint(error))


def _line(record: dict[str, object]) -> str:
    name = str(record.get("exception") or "").removeprefix("builtins.")
    said = str(record.get("message") or "").strip().partition("\n")[0]
    return _printable(f"{name}: {said}" if said else name)[:LINE_LENGTH].rstrip()


def _printable(text: str) -> str:
    """What no database refuses and no terminal obeys: control characters and lone surrogates become blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def class_of(error: str) -> str:
    """The class in a line.

    >>> class_of("app.Overbooked: Seat 12 is taken")
    'app.Overbooked'
    """
    return error.partition(":")[0]


def pattern(error: str) -> str:
    """A line with a mark in place of each value: what errors that are alike have in common.

    >>> pattern("KeyError: 'UA1545' of 3")
    'KeyError: <value> of <n>'
    """
    name, colon, said = error.partition(":")
    return name + colon + _ANY.sub(_marked, said)


def _marked(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"


def fingerprint(error: str) -> int:
    """The number that a line shares with all that have its pattern: -2**63 to 2**63 - 1."""
    digest = blake2b(pattern(error).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def as_hex(number: int) -> str:
    """A fingerprint as 16 digits, for addresses."""
    return f"{number & (2**64 - 1):016x}"


def from_hex(digits: str) -> int:
    """The reverse. Raises ValueError."""
    return int.from_bytes(bytes.fromhex(digits), signed=True)
