"""Wake-ups for those who wait for the end of messages, and for workers whose message has ended.

Nobody pays for them while nobody waits: who waits says so, and workers that hear it tell of ends for a while. Whatever
is not told is found by asking the table: this saves time, and nothing depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayedq.store.listener import Listener

#: Workers tell of ends for this many seconds after they heard that somebody waits; who waits says so twice as often.
TOLD_FOR = 10.0
ASK_EVERY = TOLD_FOR / 2


class Ends:
    """What a database without notifications does: nothing. Who waits there polls."""

    def end_listener(self) -> Listener | None:
        """A new listener that hears of ends; the caller closes it. None: the database tells of none."""
        return None

    def ask_for_ends(self) -> None:
        """Say that somebody waits. Raises django.db.Error."""

    def somebody_waits(self) -> None:
        """A worker heard that somebody waits."""

    def tell_stopped_after_commit(self) -> None:
        """Have workers look which of their running messages have ended, after the commit of the caller."""

    def tell_ends(self) -> None:
        """A worker has ended messages: tell who waits, if somebody does. Raises django.db.Error."""
