"""Asks twice a second for the newest id, which is the last entry of the primary key, and for what is paused.

It notices most messages that were created, and none that was moved: a worker finds those by its next scan, after
POLL_INTERVAL at the latest.
"""

from __future__ import annotations

from typing import ClassVar

from delayedq.store.listener import Listener
from delayedq.store.mysql.sql import NEWEST


class MySQLListener(Listener):
    interval: ClassVar[float | None] = 0.5

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._newest = self._ask()

    def _ask(self) -> tuple[int, ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(NEWEST)
            newest: tuple[int, ...] = cursor.fetchone()
        return newest

    def heard(self) -> bool:
        (before, *pauses), (newest, *now) = self._newest, self._ask()
        self._newest = (max(before, newest), *now)
        return newest > before or now != pauses
