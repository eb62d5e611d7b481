"""Tell dead letters apart: by their last error in one line, and by a number that alike errors share. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.core.bounds import ERRORS_KEPT

if TYPE_CHECKING:
    from datetime import datetime

# The errors that a message stores: a JSON list with one record per failed attempt, the latest last.


def with_error(
    stored: str | None,
    *,
    attempt: int,
    failed_at: datetime,
    seconds: float | None,
    worker: str | None,
    exception: str,
    message: str,
    traceback: str = "",
    chain: Sequence[str] = (),
    log: Sequence[str] = (),
    processor_seconds: float | None = None,
) -> str:
    """Return the stored list with one more record, cut to the last ERRORS_KEPT.

    seconds: duration of the attempt; None if nothing ran. exception: the dotted path of its class.
    chain: what it was raised from, the nearest first. log: its last lines; processor_seconds: what its thread took;
    both where they were kept.
    """
    record: dict[str, object] = {
        "attempt": attempt,
        "failed_at": failed_at.isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "worker": worker,
        "exception": exception,
        "message": message,
        "traceback": traceback,
    }
    if chain:
        record["chain"] = list(chain)
    if log:
        record["log"] = list(log)
    if processor_seconds is not None:
        record["processor_seconds"] = round(processor_seconds, 6)
    return json.dumps([*known_errors(stored), record][-ERRORS_KEPT:])


def known_errors(stored: str | None) -> list[dict[str, Any]]:
    """The records of a stored list; none if other code has written something else into the column."""
    try:
        known = json.loads(stored) if stored else []
        return [record for record in known if isinstance(record["attempt"], int)]
    except (ValueError, RecursionError, TypeError, LookupError):
        return []


# Which errors a task means: the values of its options `retry_on` and `give_up_on`.


#: An exception class, several of them, or a function that takes the error and returns True for those that are meant.
type ErrorChoice = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]


def check_error_choice(value: Any) -> None:
    """Raises ValueError for what names no errors. None means that nothing is said."""
    classes = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(one, type) and issubclass(one, BaseException) for one in classes) and classes:
        return
    if value is not None and (isinstance(value, list | tuple | type) or not callable(value)):
        raise ValueError(f"must be an exception class, several of them, or a function of the error, not {value!r}")


def is_meant(choice: ErrorChoice, error: BaseException) -> bool:
    """Whether the choice means this error. What a function of the choice raises passes through."""
    if isinstance(choice, type):
        return isinstance(error, choice)
    if isinstance(choice, Sequence):
        return isinstance(error, tuple(choice))
    return bool(choice(error))


def may_retry(error: BaseException, retry_on: ErrorChoice | None, give_up_on: ErrorChoice | None) -> bool:
    """Whether another attempt may follow this error; `give_up_on` goes before `retry_on`."""
    if give_up_on is not None and is_meant(give_up_on, error):
        return False
    return retry_on is None or is_meant(retry_on, error)


# Fingerprints


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
