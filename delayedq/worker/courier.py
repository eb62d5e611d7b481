"""The thread that goes to the database for the loop.

While it is on its way with one batch, the loop hands out the batch before and collects the ends for the next: the
database and this process work at the same time.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from django.db import DataError, Error, IntegrityError, connections

from delayedq.store.protocol import Settled, Tick
from delayedq.worker.transitions import decision, transition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from delayedq.core.lifecycle import Decision
    from delayedq.store.protocol import Lane, Store, Transition
    from delayedq.worker.executor import Ended
    from delayedq.worker.outage import Outage

logger = logging.getLogger("delayedq")

NOTHING = Tick([], Settled())


@dataclass(slots=True, eq=False)
class Trip:
    """What has ended goes there, and up to `room` messages of the planned lanes come back."""

    ended: list[Ended]
    planned: Sequence[Lane]
    room: int
    #: When it was asked for, began and ended: moments of `time.monotonic()`.
    asked_at: float = field(default_factory=time.monotonic)
    began: float = 0.0
    ended_at: float = 0.0
    under_way: threading.Event = field(default_factory=threading.Event)
    back: threading.Event = field(default_factory=threading.Event)
    # What the courier fills in.
    decided: list[Decision] = field(default_factory=list)
    #: After an error, the ends that may be stored or not are `busy`.
    tick: Tick = NOTHING
    #: Ends that can't be stored: they are left to their leases.
    unstorable: set[int] = field(default_factory=set)
    error: BaseException | None = None

    def concluded(self) -> list[tuple[Ended, Decision]]:
        """The ends that need no other trip, once it is back."""
        busy = self.tick.settled.busy
        return [one for one in zip(self.ended, self.decided, strict=False) if one[0].attempt.id not in busy]


class Courier(threading.Thread):
    """Makes one trip after the other, on a connection of its own; `wake` is called after each."""

    def __init__(self, store: Store, outage: Outage, lease: timedelta, worker: str, wake: Callable[[], None]) -> None:
        super().__init__(name="delayedq-courier", daemon=True)
        self._store = store
        self._outage = outage
        self._lease = lease
        self._worker = worker
        self._wake = wake
        self._trips: SimpleQueue[Trip | None] = SimpleQueue()

    def send(self, trip: Trip) -> None:
        self._trips.put(trip)

    def stop(self) -> None:
        self._trips.put(None)
        self.join()

    def run(self) -> None:
        while (trip := self._trips.get()) is not None:
            try:
                self._carry(trip)
            except BaseException as error:  # noqa: BLE001  the loop raises it, or tries again
                self._fail(trip, error, [one.attempt.id for one in trip.ended])
            trip.ended_at = time.monotonic()
            trip.back.set()
            self._wake()
        connections[self._store.alias].close()

    def _fail(self, trip: Trip, error: BaseException, unsure: Iterable[int]) -> None:
        trip.error = error
        settled = trip.tick.settled
        trip.tick = Tick([], settled._replace(busy=settled.busy.union(unsure)))
        with suppress(Exception):
            connections[self._store.alias].close()

    def _carry(self, trip: Trip) -> None:
        trip.began = time.monotonic()
        trip.decided = [decision(one) for one in trip.ended]
        transitions = [transition(one, what, trip.began) for one, what in zip(trip.ended, trip.decided, strict=True)]
        trip.under_way.set()
        try:
            tick = self._store.tick(transitions, trip.planned, trip.room, self._lease, self._worker)
        except (DataError, IntegrityError):
            if not transitions:
                raise
            trip.planned = ()
            self._settle_singly(trip, transitions)
        else:
            trip.tick = tick
        settled = trip.tick.settled
        lost = self._outage.really_lost(settled.lost, self._store)
        trip.tick = trip.tick._replace(settled=settled._replace(lost=lost))

    def _settle_singly(self, trip: Trip, transitions: Sequence[Transition]) -> None:
        """One of these ends can't be stored: settle the others."""
        for position, one in enumerate(transitions):
            try:
                answer = self._store.settle([one], self._worker)
            except (DataError, IntegrityError):
                logger.exception("The end of message %s can't be stored.", one.claimed.id)
                trip.unstorable.add(one.claimed.id)
            except Error as error:
                self._fail(trip, error, [later.claimed.id for later in transitions[position:]])
                return
            else:
                settled = (before | now for before, now in zip(trip.tick.settled, answer, strict=True))
                trip.tick = Tick([], Settled(*settled))
