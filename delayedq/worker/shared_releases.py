"""What is left to release of dead worker processes, in memory that lease keepers share, one after the other.

A message whose row another transaction has locked is released when that ends, and a claim that was under way when
its worker died may commit later. The lease keeper remembers both here: if it is killed, the next one goes on with them.
"""

from __future__ import annotations

import mmap
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    type Pair = tuple[int, int]

#: Messages that a fleet remembers because they are locked, and claims that may still commit, at most. If there are
#: more, the shared leases of a dead process are kept until there is room.
CAPACITY, CLAIMS = 65_536, 1_024
_WORD = 8


class SharedPairs:
    """A set of pairs of 64-bit numbers, the first not 0; one process at a time uses it, and reads it when it begins.

    A pair is there once its first number is, and that is one word, which is written atomically.
    """

    def __init__(self, capacity: int) -> None:
        memory = memoryview(mmap.mmap(-1, 2 * capacity * _WORD)).cast("q")
        self._firsts, self._seconds = memory[:capacity], memory[capacity:]

    @cached_property
    def _slots(self) -> dict[Pair, int]:
        return {(first, self._seconds[slot]): slot for slot, first in enumerate(self._firsts.tolist()) if first}

    @cached_property
    def _free(self) -> list[int]:
        return [slot for slot, first in enumerate(self._firsts.tolist()) if not first]

    def __iter__(self) -> Iterator[Pair]:
        return iter(list(self._slots))

    def __len__(self) -> int:
        return len(self._slots)

    def has_room_for(self, pairs: Iterable[Pair]) -> bool:
        return len(set(pairs).difference(self._slots)) <= len(self._free)

    def add(self, pairs: Iterable[Pair]) -> None:
        """There must be room for them."""
        for pair in set(pairs).difference(self._slots):
            slot = self._slots[pair] = self._free.pop()
            self._seconds[slot] = pair[1]
            self._firsts[slot] = pair[0]

    def discard(self, pairs: Iterable[Pair]) -> None:
        for pair in set(pairs).intersection(self._slots):
            slot = self._slots.pop(pair)
            self._firsts[slot] = 0
            self._free.append(slot)


class SharedReleases:
    """`unreleased`: messages (id, token). `claims`: tokens, and until when (monotonic, in ms) they are searched for."""

    def __init__(self, messages: int = CAPACITY, claims: int = CLAIMS) -> None:
        self.unreleased = SharedPairs(messages)
        self.claims = SharedPairs(claims)
