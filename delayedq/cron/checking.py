"""Checks of single values of a definition, and the path that an error names."""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from delayedq.compat import InvalidTask
from delayedq.exceptions import DelayedQError, InvalidSchedule

if TYPE_CHECKING:
    from enum import StrEnum


class Path(NamedTuple):
    """Where a definition, or one of its keys, stands, such as `DELAYEDQ['CRON']['report']`."""

    text: str
    key: str | None = None

    def at(self, key: str | None = None) -> Path:
        """Raise ImproperlyConfigured with the path for what is found wrong in a `with` block."""
        return Path(self.text, key)

    def __enter__(self) -> None:
        """No generator, which would take a quarter of the time to read a schedule."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DelayedQError | InvalidTask | TypeError | ValueError):
            where = self.text if self.key is None else f"{self.text}[{self.key!r}]"
            raise ImproperlyConfigured(f"{where}: {error}") from error


def checked_choice[Choice: StrEnum](choices: type[Choice], given: object) -> Choice:
    """Raises InvalidSchedule with the valid choices, and the nearest one."""
    if isinstance(given, str) and given in list(choices):
        return choices(given)
    known = [choice.value for choice in choices]
    close = get_close_matches(str(given), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidSchedule(f"It is one of {', '.join(map(repr, known))}, not {given!r}.{hint}")


def checked_number(given: object, lowest: int, highest: int) -> int:
    """Raises InvalidSchedule. True is no number here, nor is 1.0."""
    if type(given) is not int or not lowest <= given <= highest:
        raise InvalidSchedule(f"It is a whole number from {lowest} to {highest}, not {given!r}.")
    return given


def checked_duration(given: object) -> timedelta | None:
    """Raises InvalidSchedule."""
    if given is not None and (not isinstance(given, timedelta) or given <= timedelta()):
        raise InvalidSchedule(f"It is a timedelta over zero, or None, not {given!r}.")
    return given
