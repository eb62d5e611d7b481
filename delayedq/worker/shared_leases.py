"""The leases that a worker process holds, in memory that it shares with the lease keeper.

The keeper is another process, so that no task can starve it, and it outlives the worker: the shared leases are all that
remains of a process that was killed. The worker writes an entry; the keeper only reads it, and may set its `lost` word.
A 64-bit word is written atomically; an entry that changes between two reads is recognised by its token.
"""

from __future__ import annotations

import math
import mmap
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.registry import WorkerCommand
from delayedq.store.sqlite.database import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    type Pair = tuple[int, int]

#: How many messages one process may hold at once, beside one per thread.
CAPACITY = 8192

_WORD = 8

_FREE, _HELD, _STARTED = 0, 1, 2

#: The words about the process, behind the columns.
(
    _HEARTBEAT, _TURNED, _PID, _BORN_AT, _STARTED_AT, _LOST_THREADS, _DEAF, _AWAY, _CLAIM_EXPIRED_UNTIL, _ASKED,
    _KEEPER_LACKS, _RENEWED_AT, _CLAIMS,
) = range(13)  # fmt: skip

#: What an operator may ask of the process, as the word of it; 0: nothing.
_REQUESTS: tuple[WorkerCommand | None, ...] = (None, *WorkerCommand)

#: How many claims are remembered: one is under way, and the one before may not be entered yet.
_REMEMBERED = 4

_GIVEN_UP = range(_CLAIMS + _REMEMBERED, _CLAIMS + 2 * _REMEMBERED)

_EVER = 2**63 - 1


def lease_clock() -> float:
    """Seconds on a clock that also goes on while the machine sleeps, where it has one. Of a virtual machine that its
    host has paused, no clock says so before the guest is told the time.
    """
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(slots=True)
class ClaimTimes:
    """When a claim was sent, and from when on all that it leased was entered (moments of `lease_clock`; infinity: it is
    not yet); and its lease in seconds. All messages of a claim share it.
    """

    sent_at: float
    lease: float
    entered_at: float = math.inf


class Entry(NamedTuple):
    slot: int
    id: int
    token: int
    started: bool


class SharedLeases:
    """Four columns of 64-bit words: id, token, state, and the token whose lease was lost.

    And words about the process: when its loop last gave out work and last turned, its id (0: there is none), when it
    started (as /proc has it, and as `time.monotonic()` has it), how many of its threads are lost, whether its listener
    is deaf, whether its database is away, until when it may claim expired leases, what an operator asks of it,
    whether the keeper gets no connection and when it began to renew (the keeper writes these four), the tokens of
    claims of which not all that they leased is entered, and of claims that were given up, as their answer was lost.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        memory = memoryview(mmap.mmap(-1, (4 * capacity + _CLAIMS + 2 * _REMEMBERED) * _WORD)).cast("q")
        self.capacity = capacity
        self._process = memory[4 * capacity :]
        self._process[_CLAIM_EXPIRED_UNTIL] = _EVER  # there may be no keeper
        self._claims = 0
        self.heartbeat()
        self._ids, self._tokens, self._states, self._lost = (
            memory[column * capacity : (column + 1) * capacity] for column in range(4)
        )
        self._free = list(range(capacity - 1, -1, -1))

    # The worker's side

    def register(self, pid: int) -> None:
        """The process of this id uses it from now on."""
        self._process[_STARTED_AT] = _milliseconds()
        process = find(pid)
        self._process[_BORN_AT] = process.started_at if process else 0
        self.heartbeat()
        self._process[_PID] = pid

    def turn(self) -> None:
        """The loop has turned. (The monotonic clock is the same in all processes of a machine.)"""
        self._process[_TURNED] = _milliseconds()

    def heartbeat(self) -> None:
        """The loop has turned, and gives out work: it does not wait for the database."""
        self._process[_TURNED] = self._process[_HEARTBEAT] = _milliseconds()

    def remember_claim(self, token: int) -> None:
        """A claim with this token is about to be sent: what it leases is ours before we know what it is."""
        self._process[_CLAIMS + self._claims % _REMEMBERED] = token
        self._claims += 1

    def forget_claim(self, token: int) -> None:
        """All that this claim has leased is entered."""
        for word in range(_CLAIMS, _CLAIMS + _REMEMBERED):
            if self._process[word] == token:
                self._process[word] = 0

    def give_up_claim(self, token: int) -> None:
        """Its answer was lost: what it may have leased is not entered, and the keeper releases it."""
        free = [word for word in _GIVEN_UP if not self._process[word]]
        self._process[free[0] if free else _GIVEN_UP[0]] = token
        self.forget_claim(token)

    def report(self, *, lost_threads: int, deaf: bool, away: bool = False) -> None:
        """What is wrong with the process, for the registry and for who asks whether it is ready."""
        self._process[_LOST_THREADS], self._process[_DEAF], self._process[_AWAY] = lost_threads, deaf, away

    def farewell(self) -> None:
        """The process ends, and nothing that it claimed is unknown to the keeper."""
        for word in range(_CLAIMS, _CLAIMS + _REMEMBERED):
            self._process[word] = 0

    def hold(self, id_: int, token: int) -> int:
        """Enter a claimed message; returns its slot."""
        slot = self._free.pop()
        self._ids[slot] = id_
        self._tokens[slot] = token
        self._states[slot] = _HELD
        return slot

    def start(self, slot: int) -> None:
        self._states[slot] = _STARTED

    def drop(self, slot: int) -> None:
        """Free the slot of a settled message."""
        self._states[slot] = _FREE
        self._free.append(slot)

    def is_lost(self, slot: int, token: int) -> bool:
        return self._lost[slot] == token

    def is_current(self, claim: ClaimTimes) -> bool:
        """Whether what was claimed then is still leased, as far as this machine can know: the whole fleet may have been
        frozen for longer than that, keeper and all, and others may have it by now.
        """
        moment = lease_clock()
        if moment < claim.sent_at + claim.lease:
            return True
        renewed_at = self._process[_RENEWED_AT] / 1000
        return renewed_at >= claim.entered_at and moment < renewed_at + claim.lease

    @property
    def asked(self) -> WorkerCommand | None:
        """What an operator asks of the process."""
        return _REQUESTS[self._process[_ASKED]]

    def keeper_lacks_connection(self, since: float) -> bool:
        """Whether the keeper gets no connection to the database, and has tried since this moment (monotonic)."""
        return self._process[_KEEPER_LACKS] > since * 1000

    def may_claim_expired(self) -> bool:
        """Have renewals gone through lately? Otherwise the leases of other workers may have expired unrenewed."""
        return _milliseconds() < self._process[_CLAIM_EXPIRED_UNTIL]

    # The keeper's side

    @property
    def pid(self) -> int:
        """The id of the process that uses it; 0 if there is none."""
        return self._process[_PID]

    def is_alive(self) -> bool:
        """True if that process exists, and is not a zombie, nor another one that was given its id."""
        process = find(self.pid) if self.pid else None
        return process is not None and process.started_at == self._process[_BORN_AT]

    def age(self) -> float:
        """Seconds since that process started."""
        return (_milliseconds() - self._process[_STARTED_AT]) / 1000

    def entries(self) -> list[Entry]:
        states = self._states.tolist()
        return [
            Entry(slot, self._ids[slot], self._tokens[slot], state == _STARTED)
            for slot, state in enumerate(states)
            if state != _FREE
        ]

    def silent_for(self) -> float:
        """Seconds since the loop last gave out work."""
        return (_milliseconds() - self._process[_HEARTBEAT]) / 1000

    def still_for(self) -> float:
        """Seconds since the loop last turned."""
        return (_milliseconds() - self._process[_TURNED]) / 1000

    @property
    def turned(self) -> int:
        """A number that is another one after each turn of the loop, a millisecond apart."""
        return self._process[_TURNED]

    @property
    def lost_threads(self) -> int:
        """How many threads of the process are lost."""
        return self._process[_LOST_THREADS]

    @property
    def deaf(self) -> bool:
        """True if the listener of the process is deaf: it receives no notifications."""
        return bool(self._process[_DEAF])

    @property
    def away(self) -> bool:
        """True if the database does not answer the process."""
        return bool(self._process[_AWAY])

    def claims(self) -> list[int]:
        """The tokens of claims that may have leased more than is entered: under way, or not answered."""
        return [token for token in self._process[_CLAIMS : _GIVEN_UP.stop].tolist() if token]

    def take_given_up(self) -> list[int]:
        """The tokens of the claims that were given up since the last call."""
        taken = [(word, self._process[word]) for word in _GIVEN_UP if self._process[word]]
        for word, _ in taken:
            self._process[word] = 0
        return [token for _, token in taken]

    def take_away(self, entry: Entry) -> bool:
        """Tell the worker not to start this; False if it has started meanwhile.

        The worker writes "started" and then reads "lost"; the keeper writes "lost" and then reads "started". So at
        least one of them sees what the other wrote.
        """
        self.report_lost(entry)
        return self._states[entry.slot] != _STARTED

    def renewed(self, began_at: float) -> None:
        """All that was entered at this moment of `lease_clock` was renewed after it."""
        self._process[_RENEWED_AT] = int(began_at * 1000)

    def let_claim_expired(self, seconds: float) -> None:
        """Allow it for this many seconds from now; 0 forbids it."""
        self._process[_CLAIM_EXPIRED_UNTIL] = _milliseconds() + int(seconds * 1000)

    def tell_keeper_lacks_connection(self, lacks: bool) -> None:
        """Tell the process whether the keeper got no connection to the database just now."""
        self._process[_KEEPER_LACKS] = _milliseconds() if lacks else 0

    def ask(self, request: WorkerCommand | None) -> None:
        """Tell the process what an operator asks of it."""
        self._process[_ASKED] = _REQUESTS.index(request)

    def report_lost(self, entry: Entry) -> None:
        """Tell the worker that this lease is lost."""
        self._lost[entry.slot] = entry.token

    def clear(self) -> None:
        """Empty it for the next process."""
        self._process[_PID] = 0
        self.report(lost_threads=0, deaf=False)
        self.ask(None)
        self.farewell()
        self.take_given_up()
        for slot in range(self.capacity):
            self._states[slot] = _FREE


def _milliseconds() -> int:
    return int(time.monotonic() * 1000)


# What is left to release of dead worker processes, in memory that lease keepers share, one after the other.
#
# A message whose row another transaction has locked is released when that ends, and a claim that was under way when
# its worker died may commit later. The lease keeper remembers both here: if it is killed, the next one goes on with
# them.


#: Messages that a fleet remembers because they are locked, and claims that may still commit, at most. If there are
#: more, the shared leases of a dead process are kept until there is room.
RELEASES, CLAIMS = 65_536, 1_024


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

    def __init__(self, messages: int = RELEASES, claims: int = CLAIMS) -> None:
        self.unreleased = SharedPairs(messages)
        self.claims = SharedPairs(claims)
