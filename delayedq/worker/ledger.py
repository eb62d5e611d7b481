"""Which messages a worker process holds, in memory that it shares with the lease keeper.

The keeper is another process, so that no task can starve it, and it outlives the worker: what the ledger says is all
that remains of a process that was killed. One process writes an entry, the other only reads it and may say `lost`.
A word is written at once; an entry that changes between two reads is told by its token.
"""

from __future__ import annotations

import mmap
import time
from typing import NamedTuple

#: How many messages one process may hold at once, beside one per thread.
CAPACITY = 8192
_WORD = 8
_FREE, _HELD, _STARTED = 0, 1, 2


class Entry(NamedTuple):
    slot: int
    id: int
    token: int
    started: bool


class Ledger:
    """Four columns of 64-bit words: id, token, state, and the token whose lease was lost.

    And three words about the process: when its loop last turned, its id (0: there is none), and when it started.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        memory = memoryview(mmap.mmap(-1, (4 * capacity + 3) * _WORD)).cast("q")
        self.capacity = capacity
        self._beat = memory[4 * capacity :]
        self._process = memory[4 * capacity + 1 :]
        self.beat()
        self._ids, self._tokens, self._states, self._lost = (
            memory[column * capacity : (column + 1) * capacity] for column in range(4)
        )
        self._free = list(range(capacity - 1, -1, -1))

    # The worker's side

    def enlist(self, pid: int) -> None:
        """The ledger is that of this process, which starts now."""
        self._process[1] = _milliseconds()
        self._process[0] = pid

    def beat(self) -> None:
        """The loop turns. (The monotonic clock is the machine's: all processes read the same.)"""
        self._beat[0] = _milliseconds()

    def hold(self, id_: int, token: int) -> int:
        slot = self._free.pop()
        self._ids[slot] = id_
        self._tokens[slot] = token
        self._states[slot] = _HELD
        return slot

    def start(self, slot: int) -> None:
        self._states[slot] = _STARTED

    def drop(self, slot: int) -> None:
        self._states[slot] = _FREE
        self._free.append(slot)

    def is_lost(self, slot: int, token: int) -> bool:
        return self._lost[slot] == token

    # The keeper's side

    @property
    def pid(self) -> int:
        """Of the process whose ledger it is; 0 if there is none."""
        return self._process[0]

    def age(self) -> float:
        """Seconds since that process started."""
        return (_milliseconds() - self._process[1]) / 1000

    def entries(self) -> list[Entry]:
        states = self._states.tolist()
        return [
            Entry(slot, self._ids[slot], self._tokens[slot], state == _STARTED)
            for slot, state in enumerate(states)
            if state != _FREE
        ]

    def silent_for(self) -> float:
        """Seconds since the loop last turned."""
        return (_milliseconds() - self._beat[0]) / 1000

    def take_away(self, entry: Entry) -> bool:
        """Tell the worker not to start this; False if it has started meanwhile.

        The worker says that it starts and then looks whether it may; here it is the other way round.
        """
        self.report_lost(entry)
        return self._states[entry.slot] != _STARTED

    def report_lost(self, entry: Entry) -> None:
        self._lost[entry.slot] = entry.token

    def clear(self) -> None:
        """Forget everything, for the next process that uses it."""
        self._process[0] = 0
        for slot in range(self.capacity):
            self._states[slot] = _FREE


def _milliseconds() -> int:
    return int(time.monotonic() * 1000)
