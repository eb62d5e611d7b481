"""Ends of messages are told by NOTIFY, while somebody waits for one."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.store.ends import TOLD_FOR, Ends
from delayedq.store.postgresql.listener import PostgreSQLListener
from delayedq.store.postgresql.sql import LISTEN_TO_ENDS, NOTIFY_ENDS, NOTIFY_STOPPED, NOTIFY_WAITING
from delayedq.store.wakeup import NOTIFY_GAP

if TYPE_CHECKING:
    from delayedq.store.listener import Listener
    from delayedq.store.postgresql.database import PostgreSQLDatabase


class EndListener(PostgreSQLListener):
    listen_to = (LISTEN_TO_ENDS,)
    channel = "delayedq_ended"


class PostgreSQLEnds(Ends):
    database: PostgreSQLDatabase

    #: Until when ends are told, and when that was last done, by `time.monotonic()`: all moments of a store share it.
    _ends: list[float]

    def end_listener(self) -> Listener | None:
        return EndListener(self.database.alias)

    def ask_for_ends(self) -> None:
        self.database.write(NOTIFY_WAITING)

    def somebody_waits(self) -> None:
        self._ends[0] = time.monotonic() + TOLD_FOR

    def tell_stopped_after_commit(self) -> None:
        with suppress(transaction.TransactionManagementError):  # autocommit is off: leases are renewed in vain
            transaction.on_commit(partial(self.database.write, NOTIFY_STOPPED), self.database.alias, robust=True)

    def tell_ends(self) -> None:
        """At most once in NOTIFY_GAP seconds: who waits checks again after each."""
        moment = time.monotonic()
        if moment < self._ends[0] and moment - self._ends[1] >= NOTIFY_GAP:
            self._ends[1] = moment
            self.database.write(NOTIFY_ENDS)
