"""The OPTIONS of a backend: its database, and what its tasks have where they do not say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.core.backoff import Exponential, as_backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from delayedq.core.backoff import Backoff

#: Attempts are counted in a smallint column.
MOST_ATTEMPTS = 32_000


def check_max_attempts(value: object) -> None:
    """Raises ValueError."""
    if type(value) is not int or not 1 <= value <= MOST_ATTEMPTS:
        raise ValueError(f"must be a number from 1 to {MOST_ATTEMPTS:,}, not {value!r}")


def check_timeout(value: object) -> None:
    """Raises ValueError."""
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta()):
        raise ValueError(f"must be a timedelta over zero, not {value!r}")


def check_backoff(value: object) -> None:
    """Raises ValueError or TypeError."""
    as_backoff(value)


def check_database(value: object) -> None:
    """Raises ValueError."""
    if value is not None and value not in list(connections):
        raise ValueError(f"must be a key of DATABASES ({', '.join(connections)}), not {value!r}")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The keys of `TASKS[alias]["OPTIONS"]`, with their defaults."""

    #: The alias of the database that has the messages; None asks the database routers.
    DATABASE: str | None = None
    #: What the tasks of this backend have that do not set it themselves.
    MAX_ATTEMPTS: int = 8
    BACKOFF: Backoff | timedelta = Exponential()  # noqa: RUF009 - it is frozen
    TIMEOUT: timedelta | None = None


_CHECKS: dict[str, Callable[[object], None]] = {
    "DATABASE": check_database,
    "MAX_ATTEMPTS": check_max_attempts,
    "BACKOFF": check_backoff,
    "TIMEOUT": check_timeout,
}

DEFAULTS = BackendOptions()


def read_options(alias: str, given: Mapping[str, Any]) -> tuple[BackendOptions, list[str]]:
    """The OPTIONS of a backend, and what is wrong with them; a wrong one has its default."""
    known = [field.name for field in fields(BackendOptions)]
    right: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        path = f"TASKS[{alias!r}]['OPTIONS'][{name!r}]"
        if name not in known:
            problems.append(f"{path} is unknown; known are {', '.join(known)}.")
            continue
        try:
            _CHECKS[name](value)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}: {error}.".replace("..", "."))
        else:
            right[name] = value
    return BackendOptions(**right), problems
