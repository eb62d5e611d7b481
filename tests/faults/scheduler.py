"""Steps clients one statement at a time, in an order that a seed decides.

A client whose statement waits for a lock of another is passed over until it has got it: it is asked of the server, so
no step depends on how fast the machine is.
"""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

from tests.faults.met import sometimes

#: Seconds in which a statement must come back, or be seen to wait for a lock.
LONGEST = 60
#: A schedule has a few dozen steps; one that has so many does not end.
MOST_STEPS = 3_000
#: Seconds until a server has undone one of the transactions that wait for each other.
DEADLOCK = 0.03


class Stuck(AssertionError):  # noqa: N818
    """A schedule that does not end."""


class Scheduler:
    def __init__(self, clients, server, decisions):
        self._clients, self._server, self._decisions = clients, server, decisions
        self.arrivals = SimpleQueue()
        self._ready, self._moving = [], set()
        self.steps, self.trace = 0, []
        #: What was decided in the thread of the client that stepped last; and whether all have begun.
        self._decided, self._has_begun = None, False

    def run(self, programs):
        """Until all programs have ended. Raises Stuck, and what a program raised."""
        running = self._clients[: len(programs)]
        for client, program in zip(running, programs, strict=True):
            client.start(program, self)
            self._moving.add(client)
            self._settle(client)
        self._has_begun = True
        while self._ready or self._moving:
            self._step()
        for error in [client.error for client in running if client.error]:
            raise error

    def goes_on(self, client):
        """Decide in the thread of a client at a boundary: whether it is its turn again, and with which fault.

        That saves two changes of the thread, if nobody else is under way.
        """
        if not self._has_begun or client.is_parked or self._moving != {client} or self.steps > MOST_STEPS:
            return False, None
        self._note_release(client)
        chosen, fault = self._decide([*self._ready, client])
        if chosen is client:
            return True, fault
        self._decided = chosen, fault
        return False, None

    def _step(self):
        if self.steps > MOST_STEPS:
            raise Stuck(f"after {MOST_STEPS} steps: {self._places()}")
        if not self._ready:
            self._await_one()
            return
        chosen, fault = self._decided or self._decide(self._ready)
        self._decided = None
        self._ready.remove(chosen)
        self._moving.add(chosen)
        chosen.go(fault)
        self._settle(chosen)
        self._note_release(chosen)

    def _decide(self, ready):
        self.steps += 1
        able = [one for one in ready if not one.is_parked] or self._unparked(ready)
        chosen = self._decisions.choose(sorted(able, key=lambda one: one.number))
        fault = self._decisions.fault(self.steps)
        self.trace.append((chosen.number, " ".join(chosen.where.split())[:70], fault))
        return chosen, fault

    def _note_release(self, client):
        """Whoever waited for the end of a transaction tries again."""
        if client.releases or client.has_ended:
            client.releases = 0
            self._unparked(self._ready)

    def _unparked(self, ready):
        for client in ready:
            client.is_parked = False
        return ready

    def _settle(self, stepped):
        """Until each client is at a boundary, has ended, or waits for a lock."""
        until = time.monotonic() + LONGEST
        while self._moving:
            patience = self._server.patience if stepped in self._moving else self._server.grace
            try:
                self._arrived(self.arrivals.get(block=patience > 0, timeout=patience))
            except Empty:
                if self._server.waiting(self._moving) == len(self._moving):
                    self._blocked(stepped)
                    return
                if time.monotonic() > until:
                    raise Stuck(f"for {LONGEST} s: {self._places()}") from None

    def _blocked(self, stepped):
        if stepped in self._moving:
            sometimes("a statement waited for a lock")
            if len(self._moving) > 1:  # maybe for each other: the server ends that
                self._await_one(DEADLOCK)

    def _await_one(self, seconds=LONGEST):
        """All wait for each other, until the server undoes one."""
        try:
            self._arrived(self.arrivals.get(timeout=seconds))
        except Empty:
            if seconds == LONGEST:
                raise Stuck(f"All wait: {self._places()}") from None

    def _arrived(self, client):
        self._moving.discard(client)
        if not client.has_ended:
            self._ready.append(client)

    def _places(self):
        return {client.number: client.where for client in self._clients}
