"""What a worker remembers of the queues it serves: their lanes, what is due in them, and how far it has claimed.

A lane is one queue at one priority. Its *floor* is the due time up to which the worker has claimed: a claim starts
there, and so never walks again over the rows it took, which stay in the index until a vacuum may remove them. With a
transaction held open elsewhere that is never, and claims without a floor get slower with each message. The floor is a
hint only: `look` sees what it would miss (late commits, times moved back, expired leases) and lowers it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from delayedq.store.protocol import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.protocol import Claimed, Sight

#: A transaction that commits so much later than it began is still found without a look.
SLACK = timedelta(milliseconds=250)

#: So many lanes are remembered when they are empty: a wake-up is followed by a claim from them, and needs no look.
REMEMBERED = 16


@dataclass(slots=True)
class _Known:
    floor: datetime
    #: The moment of `time.monotonic()` at which its next message is due.
    due: float
    #: Claims in a row that found nothing.
    misses: int = 0
    #: The due time of the last message that a claim took.
    reached: datetime | None = None

    def advance(self, scheduled_at: datetime, *, has_more: bool) -> None:
        """Messages up to that time were claimed. Where there are more, the floor follows close behind: late commits
        wait for the next look then, but no claim walks over all that was due in the time that they may take.
        """
        self.misses = 0
        floor = _before(scheduled_at, SLACK)
        if has_more and self.reached is not None:
            floor = max(floor, min(self.reached, scheduled_at))
        self.floor, self.reached = max(self.floor, floor), scheduled_at

    def rest(self) -> None:
        """There is nothing to claim."""
        self.due, self.misses = float("inf"), 0

    def look_due(self, moment: float, due_in: float) -> None:
        """It is due then. But if it was so before and nothing could be claimed, somebody has locked what is there."""
        if due_in > 0:
            self.due, self.misses = moment + due_in, 0
        else:
            pause = 0.0 if self.misses <= 1 else min(1.0, 0.025 * 2 ** min(self.misses, 10))
            self.due = moment + max(due_in, pause)


class Lanes:
    """Shared by the loop, which plans and advances, and the lookout, which sees."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], _Known] = {}
        self._lock = Lock()
        #: How often somebody looked.
        self.looks = 0

    def see(self, sights: Sequence[Sight], moment: float) -> None:
        """Take over what a look at `moment` (monotonic) found; lanes it did not find are empty, or paused."""
        with self._lock:
            before, self._lanes = self._lanes, {}
            for sight in sights:
                name = sight.queue, sight.priority
                gone = before.pop(name, None)
                self._lanes[name] = known = _Known(_floor(sight), 0.0, gone.misses if gone else 0)
                known.look_due(moment, sight.due_in)
            for name, known in islice(before.items(), REMEMBERED):  # the latest come first
                self._lanes[name] = known
                known.rest()
            self.looks += 1

    def known(self) -> list[Lane]:
        with self._lock:
            return [Lane(*name, known.floor) for name, known in self._lanes.items()]

    def glimpse(self, sights: Sequence[Sight], moment: float) -> None:
        """Take over when known lanes are due next, as a glance at `moment` found; their floors stay."""
        due_in = {(s.queue, s.priority): s.due_in for s in sights}
        with self._lock:
            for name, known in self._lanes.items():
                if name in due_in:
                    known.look_due(moment, due_in[name])
                else:
                    known.rest()

    def hint(self) -> bool:
        """Somebody offered something: any lane may be due. Says whether one is known."""
        with self._lock:
            for known in self._lanes.values():
                known.due = 0.0
            return bool(self._lanes)

    def plan(self) -> list[Lane]:
        """The lanes that are due, higher priorities first; equal ones take turns in being first."""
        moment = time.monotonic()
        with self._lock:
            due = [Lane(*name, known.floor) for name, known in self._lanes.items() if known.due <= moment]
        random.shuffle(due)
        due.sort(key=lambda lane: -lane.priority)
        return due

    def advance(self, planned: Sequence[Lane], claimed: Sequence[Claimed], asked: int) -> bool:
        """Raise the floors to what was claimed; says whether the planned lanes are exhausted."""
        exhausted = len(claimed) < asked
        full = None if exhausted or not claimed else (claimed[-1].queue, claimed[-1].priority)
        last = {(message.queue, message.priority): message.scheduled_at for message in claimed}
        with self._lock:
            for name, scheduled_at in last.items():
                if known := self._lanes.get(name):
                    known.advance(scheduled_at, has_more=name == full)
            if exhausted:
                for lane in planned:
                    if known := self._lanes.get((lane.queue, lane.priority)):
                        known.due = float("inf")
                        known.misses += (lane.queue, lane.priority) not in last
        return exhausted

    def due_in(self) -> float | None:
        """Seconds until the next message is due; None if none is known."""
        with self._lock:
            due = min((known.due for known in self._lanes.values()), default=float("inf"))
        return None if due == float("inf") else due - time.monotonic()


def _floor(sight: Sight) -> datetime:
    """What is offered from now on lies above it, also if all that is there is due later."""
    return sight.first_at if sight.due_in <= 0 else _before(sight.first_at, timedelta(seconds=sight.due_in) + SLACK)


def _before(moment: datetime, delay: timedelta) -> datetime:
    try:
        return moment - delay
    except OverflowError:  # at the beginning of all time
        return moment
