"""What a size is: how many messages there may be, waiting and in flight together, and what happens to the next one."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class OnFull(StrEnum):
    """What becomes of an offer that finds no room."""

    DROP = "drop"  #: it is not stored: its outcome is DROPPED
    RAISE = "raise"  #: QueueFull is raised, and nothing is stored
    DROP_OLDEST = "drop_oldest"  #: the message that has been due the longest is cancelled, and this one stored


class Size(NamedTuple):
    """At most `most` messages.

    scope: the name of the queue, the task or the shared limit that counts them; "": each channel does by itself.
    """

    scope: str
    most: int
    on_full: OnFull


def on_full(value: object) -> OnFull:
    """Raises ValueError for what is none."""
    try:
        return OnFull(value)  # type: ignore[arg-type]  # that is what it checks
    except ValueError:
        choices = ", ".join(repr(one.value) for one in OnFull)
        raise ValueError(f"on_full of a Limit is one of {choices}, not {value!r}") from None
