"""`PRAGMA data_version` changes when another connection writes; asking costs microseconds and reads no page."""

from __future__ import annotations

from typing import ClassVar

from delayedq.store.listener import Listener
from delayedq.store.sqlite.sql import DATA_VERSION


class SQLiteListener(Listener):
    interval: ClassVar[float | None] = 0.005

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._version = self._data_version()

    def _data_version(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(DATA_VERSION)
            version: int = cursor.fetchone()[0]
        return version

    def heard(self) -> bool:
        before, self._version = self._version, self._data_version()
        return self._version != before
