"""A process that keeps the leases of its siblings, whatever their tasks do to the interpreter.

It reads which messages each worker holds from shared memory, renews their leases three times per lease, and tells the
worker which were lost. When a worker has died it gives back what that one had not started, without charge, so that
the batch-mates of a message that kills its process do not pay for it; what had started is left to its lease. It also
tells which workers live, and prunes history.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, connections

from delayedq.conf import get_settings
from delayedq.worker.presence import RollCall
from delayedq.worker.waiter import RECONNECTING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from delayedq.store.protocol import Store
    from delayedq.worker.ledger import Entry, Ledger
    from delayedq.worker.loop import Options

logger = logging.getLogger("delayedq")

#: A loop turns every few seconds; one that was silent for so long, and for a lease, is stuck or frozen.
SILENCE = 10.0
#: History is pruned so often, so many rows at a time.
PRUNE_EVERY = 60.0
PRUNE_ROWS = 1_000
#: Leases wait no longer than this for the pruning of a large history.
PRUNE_FOR = 1.0


class Bereaved(NamedTuple):
    """A worker has died: take care of its ledger. `all_of_it`: also of what it had started, because it gave up."""

    ledger: int
    all_of_it: bool


class LeaseKeeper:
    def __init__(self, store: Store, ledgers: Sequence[Ledger], options: Options, supervisor: Connection) -> None:
        self._store = store
        self._ledgers = ledgers
        self._lease = options.lease
        self._supervisor = supervisor
        self._roll = RollCall(store, ledgers, options)
        self._renew_at = 0.0
        self._bereaved: list[Bereaved] = []
        self._hung_up = False
        self._prune_at = 0.0

    def run(self) -> None:
        """Serve until the supervisor and all workers have hung up: each of them has the other end of the pipe."""
        failures = 0
        while not self._hung_up:
            try:
                self._keep()
                self._bury()
                self._roll.call()
                self._prune()
                failures = 0
            except Error as error:
                failures += 1
                logger.warning("The lease keeper lost the database: %s", str(error).strip())
                connections[self._store.alias].close()
            self._listen(RECONNECTING(failures).total_seconds() if failures else self._patience())
        self._bury_the_rest()
        connections.close_all()

    def _patience(self) -> float:
        """Seconds until there is something to do if nobody dies."""
        return max(0.0, min(self._renew_at - time.monotonic(), self._roll.due_in()))

    def _listen(self, seconds: float) -> None:
        """Hear the supervisor until it is time to renew, or somebody has died."""
        try:
            if self._supervisor.poll(seconds):
                self._bereaved.append(self._supervisor.recv())
        except (EOFError, OSError):
            self._hung_up = True

    def _keep(self) -> None:
        """Three times per lease."""
        if time.monotonic() >= self._renew_at:
            self._recall()
            self._renew()
            self._renew_at = time.monotonic() + self._lease.total_seconds() / 3 * random.uniform(0.9, 1.0)  # noqa: S311

    def _renew(self) -> None:
        held = [(ledger, entry) for ledger in self._ledgers for entry in ledger.entries()]
        if not held:
            return
        lost = self._store.renew([(entry.id, entry.token) for _, entry in held], self._lease)
        for ledger, entry in held:
            if (entry.id, entry.token) in lost:
                ledger.report_lost(entry)

    def _recall(self) -> None:
        """A worker whose loop has not turned for so long starts nothing: give what it holds to others.

        What it had started may be what keeps it (a call into C that holds the interpreter), so that goes on.
        """
        for ledger in self._ledgers:
            if ledger.silent_for() > max(SILENCE, self._lease.total_seconds()):
                waiting = [e for e in ledger.entries() if not e.started and not ledger.is_lost(e.slot, e.token)]
                self._release([entry for entry in waiting if ledger.take_away(entry)])

    def _bury(self) -> None:
        """Give back what dead workers held, and tell the supervisor that their ledgers may be used again."""
        while self._bereaved:
            died = self._bereaved[0]
            ledger = self._ledgers[died.ledger]
            self._release([entry for entry in ledger.entries() if died.all_of_it or not entry.started])
            self._roll.dismiss(ledger)
            ledger.clear()
            self._bereaved.pop(0)
            with suppress(OSError):  # the supervisor is gone too
                self._supervisor.send(died)

    def _release(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._store.release([(entry.id, entry.token) for entry in entries])

    def _bury_the_rest(self) -> None:
        """All workers have ended. If the database is away now, their leases will end by themselves."""
        known = {died.ledger for died in self._bereaved}
        others = [number for number in range(len(self._ledgers)) if number not in known]
        self._bereaved += [Bereaved(number, all_of_it=False) for number in others]
        with suppress(Error):
            self._bury()

    def _prune(self) -> None:
        retention = get_settings().RETENTION
        if retention is None or time.monotonic() < self._prune_at:
            return
        pause_at = time.monotonic() + PRUNE_FOR
        while self._store.prune(retention, PRUNE_ROWS) == PRUNE_ROWS:
            if time.monotonic() >= pause_at:
                return  # and goes on after the next renewal
        self._prune_at = time.monotonic() + PRUNE_EVERY
