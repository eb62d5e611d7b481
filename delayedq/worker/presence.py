"""Telling the store which worker processes live, for operators to see: one statement every few seconds for all of them.

It is the lease keeper that tells, from the ledgers: no task can keep it from doing so.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.store.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.protocol import Store
    from delayedq.worker.ledger import Ledger
    from delayedq.worker.loop import Options

#: Seconds between two calls of the roll.
EVERY = 10.0
#: A ledger whose process is about to start is looked at so often; that takes no statement.
SOON = 0.5
#: Who died without a word (the whole machine did) is forgotten after so long, by others, who see to it so often.
FORGET_AFTER = timedelta(hours=1)
FORGET_EVERY = 600.0
#: So many messages that run are named.
NAMED = 100


def worker_name(pid: int) -> str:
    """What the messages of this process are leased by."""
    return f"{socket.gethostname()}:{pid}"


class RollCall:
    def __init__(self, store: Store, ledgers: Sequence[Ledger], options: Options) -> None:
        self._store = store
        self._ledgers = ledgers
        self._options = options
        self._known: set[str] = set()
        self._due = 0.0
        self._forget_at = 0.0

    def due_in(self) -> float:
        """Seconds until the roll should be called."""
        if len(self._known) < len(self._ledgers):
            return SOON
        return max(0.0, self._due - time.monotonic())

    def call(self) -> None:
        """Tell the store who lives, if it is time, or somebody is new. Raises django.db.Error."""
        present = [self._presence(ledger) for ledger in self._ledgers if ledger.pid]
        names = {worker.name for worker in present}
        if present and (names != self._known or time.monotonic() >= self._due):
            self._store.attend(present)
            self._due = time.monotonic() + EVERY
        self._known = names
        if time.monotonic() >= self._forget_at:
            self._store.forget(FORGET_AFTER)
            self._forget_at = time.monotonic() + FORGET_EVERY

    def dismiss(self, ledger: Ledger) -> None:
        """Its process has ended. Raises django.db.Error."""
        if ledger.pid:
            self._store.leave([worker_name(ledger.pid)])

    def _presence(self, ledger: Ledger) -> Presence:
        entries = ledger.entries()
        running = [entry.id for entry in entries if entry.started]
        return Presence(
            name=worker_name(ledger.pid),
            host=socket.gethostname(),
            pid=ledger.pid,
            threads=self._options.threads,
            queues=",".join(self._options.queues or ()),
            lease=self._options.lease.total_seconds(),
            age=ledger.age(),
            held=len(entries),
            running=json.dumps(running[:NAMED]),
        )
