"""The OPTIONS of a backend: its database, and what its tasks have where they do not say."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections

from delayedq.core.backoff import Exponential, as_backoff
from delayedq.core.error_choice import check_error_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from delayedq.core.backoff import Backoff
    from delayedq.core.error_choice import ErrorChoice

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
    BACKOFF: Backoff | timedelta | Sequence[timedelta] = Exponential()  # noqa: RUF009 - it is frozen
    RETRY_ON: ErrorChoice | None = None
    GIVE_UP_ON: ErrorChoice | None = None
    TIMEOUT: timedelta | None = None
    DEADLINE: timedelta | None = None
    EXPIRES: timedelta | None = None
    RESULT_RETENTION: timedelta | None = None
    #: The same for the tasks of some queues: a dict by the name of the queue.
    QUEUE_DEFAULTS: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, queue: str) -> BackendOptions:
        """Those of the tasks that are defined for this queue."""
        own = self.QUEUE_DEFAULTS.get(queue)
        return self if own is None else replace(self, **own)


_CHECKS: dict[str, Callable[[object], None]] = {
    "DATABASE": check_database,
    "MAX_ATTEMPTS": check_max_attempts,
    "BACKOFF": check_backoff,
    "RETRY_ON": check_error_choice,
    "GIVE_UP_ON": check_error_choice,
    "TIMEOUT": check_timeout,
    "DEADLINE": check_timeout,
    "EXPIRES": check_timeout,
    "RESULT_RETENTION": check_timeout,
}
#: What a queue has no defaults for.
_OF_BACKEND = {"DATABASE", "QUEUE_DEFAULTS"}

DEFAULTS = BackendOptions()


def read_options(alias: str, given: Mapping[str, Any]) -> tuple[BackendOptions, list[str]]:
    """The OPTIONS of a backend, and what is wrong with them; a wrong one has its default."""
    path = f"TASKS[{alias!r}]['OPTIONS']"
    known = [each.name for each in fields(BackendOptions)]
    rest = {name: value for name, value in given.items() if name != "QUEUE_DEFAULTS"}
    right, problems = _read(path, rest, known)
    queues, wrong = _read_queues(f"{path}['QUEUE_DEFAULTS']", given.get("QUEUE_DEFAULTS", {}), known)
    return BackendOptions(**right, QUEUE_DEFAULTS=queues), problems + wrong


def _read_queues(path: str, given: Any, known: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        return {}, [f"{path}: must be a dict of dicts by the names of queues, not {given!r}."]
    names = [name for name in known if name not in _OF_BACKEND]
    queues, problems = {}, []
    for queue, own in given.items():
        queues[queue], wrong = _read(f"{path}[{queue!r}]", own, names)
        problems += wrong
    return queues, problems


def _read(path: str, given: Mapping[str, Any], known: list[str]) -> tuple[dict[str, Any], list[str]]:
    right: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        if name not in known:
            problems.append(f"{path}[{name!r}] is unknown; known are {', '.join(known)}.")
            continue
        try:
            _CHECKS[name](value)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}[{name!r}]: {error}.".replace("..", "."))
        else:
            right[name] = value
    return right, problems
