"""Notifications for workers: another process or thread changed the queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from delayedq.store.connecting import separate

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Listener(ABC):
    """Reports that another process or thread changed the queue. It has a connection of its own, and one thread uses it.

    Raises django.db.Error if it can't connect.
    """

    #: Seconds between two calls of `heard`; None if `fileno` becomes readable instead.
    interval: ClassVar[float | None]

    #: False from `begin_proof` until it has heard what that sent.
    proved = True

    #: True as soon as it has heard that somebody waits for the end of a message; see `store.ends`.
    heard_waiting = False

    #: True as soon as it has heard that a running message was stopped.
    heard_stopped = False

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._connection = self._connect()
        self._connection.ensure_connection()

    def _connect(self) -> BaseDatabaseWrapper:
        return separate(self._alias)

    def begin_proof(self) -> None:  # noqa: B027  what polls by itself has nothing to prove
        """Send it a notification of its own, on the calling thread's connection, if it depends on notifications.

        A listener that does not become `proved` is deaf. Raises django.db.Error.
        """

    def fileno(self) -> int:
        """The descriptor to wait for, where `interval` is None; raises TypeError elsewhere."""
        raise TypeError(
            f"{self._connection.display_name} has no descriptor to wait for: call heard() every `interval`."
        )

    @abstractmethod
    def heard(self) -> bool:
        """Whether there was a change since the last call. Raises django.db.Error if the connection is lost."""

    def close(self) -> None:
        self._connection.close()
