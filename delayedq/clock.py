"""The moment that a test has chosen (see `delayedq.testing.clock`). Production chooses none."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING

from django.utils import timezone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

#: Threads share it, so it is no context variable. The last one counts.
_chosen: list[Callable[[], datetime]] = []


def chosen() -> datetime | None:
    """The moment that a test has chosen; None in production, where the database's clock counts.

    In UTC, as the database's: what is added to a local time moves its wall clock, over an hour that a day may lack.
    """
    return _chosen[-1]().astimezone(UTC) if _chosen else None


def now() -> datetime:
    """The moment that a test has chosen, else that of this host's clock."""
    return chosen() or timezone.now()


@contextmanager
def choose(moment: Callable[[], datetime]) -> Iterator[None]:
    """While this lasts, it is the moment that `moment` returns (an aware datetime)."""
    _chosen.append(moment)
    try:
        yield
    finally:
        _chosen.remove(moment)
