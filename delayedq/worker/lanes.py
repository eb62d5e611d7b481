"""What a worker knows of the queues it serves: their lanes, when each is due next, and how far it has claimed.

A lane is one queue at one priority. Its *watermark* is the due time up to which the worker has claimed. A claim
starts there, so it does not read again the rows it took, which stay in the index until vacuum may remove them. While
another session holds a transaction open, vacuum can't, and claims without a watermark get slower with each message.
The watermark is a hint only: `scan` finds what it would miss (late commits, times moved back, expired leases) and
lowers it.
"""

from __future__ import annotations

import random
import time
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice, takewhile
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING

from delayedq.limits.claims import TAKEN
from delayedq.limits.requests import AS_BEFORE
from delayedq.sql.priority import is_limited
from delayedq.store.protocol import BARE, Lane

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.store.protocol import Claimed, LaneHead


#: A transaction that commits at most 250 ms after its offer is still found without a scan.
SLACK = timedelta(milliseconds=250)

#: When a message is due again that a worker gave back because it can't run it, others have 0.25 s to claim it first.
HANDICAP = 0.25

#: Such moments that are closer together are one.
GRAIN = 0.02

#: At most 16 empty lanes are remembered: after a wake-up the loop claims from them without waiting for a scan.
REMEMBERED = 16


#: A claim names at most 1,024 lanes; after one that got all it asked for, twice as many as that came from, but at least
#: 64. If more are due, equal ones take turns.
FEWEST_NAMED, MOST_NAMED = 64, 1024

#: Seconds between two claims from a lane while a long scan is under way, as nobody hears of offers meanwhile.
UNHEARD = 0.01


@dataclass(slots=True)
class _KnownLane:
    watermark: datetime
    #: The moment of `time.monotonic()` at which its next message is due.
    due: float
    #: Claims in a row that found nothing.
    misses: int = 0
    #: The due time of the last message that a claim took.
    reached: datetime | None = None
    #: Moments at which messages are due again that other workers shall claim, in order.
    yields_at: list[float] = field(default_factory=list)

    def advance(self, scheduled_at: datetime, *, has_more: bool) -> None:
        """Messages up to that time were claimed. With a backlog (`has_more`) the watermark drops its 250 ms slack: late
        commits wait for the next scan, and claims do not re-read rows just taken.
        """
        self.misses = 0
        watermark = _before(scheduled_at, SLACK)
        if has_more and self.reached is not None:
            watermark = max(watermark, min(self.reached, scheduled_at))
        self.watermark, self.reached = max(self.watermark, watermark), scheduled_at

    def rest(self) -> None:
        """There is nothing to claim."""
        self.due, self.misses = float("inf"), 0

    def expect(self, moment: float, due_in: float) -> None:
        """Due in that many seconds. After claims in vain (its rows are locked), after a growing pause."""
        if due_in > 0:
            self.due, self.misses = moment + due_in, 0
        else:
            pause = 0.0 if self.misses <= 1 else min(1.0, 0.025 * 2 ** min(self.misses, 10))
            self.due = moment + max(due_in, pause)

    def yield_at(self, moment: float, now: float) -> None:
        """Let other workers go first when that moment comes."""
        coming = [one for one in self.yields_at if one + HANDICAP > now]
        if all(abs(one - moment) >= GRAIN for one in coming):
            insort(coming, moment)
        self.yields_at = coming

    def claim_at(self, moment: float) -> float:
        """When to claim from it, if it is `moment` now; infinity: not as far as is known."""
        due = max(self.due, moment)
        for first in self.yields_at:
            if first <= due < first + HANDICAP:
                due = first + HANDICAP
        return due


class Lanes:
    """Shared by the loop, which plans and advances, and the poller, which scans and peeks.

    `excluded`: queues that this worker does not serve.
    """

    def __init__(self, excluded: Collection[str] = ()) -> None:
        self._excluded = excluded
        self._lanes: dict[tuple[str, int], _KnownLane] = {}
        self._lock = Lock()
        #: Lanes of the highest priority that is due, in the order of their turns, until another may be due (monotonic).
        self._turns: deque[tuple[str, int]] = deque()
        self._turns_until = float("inf")
        #: How many lanes the next claim names.
        self._named = MOST_NAMED
        #: Lanes that claims have found empty since somebody looked when they are due next.
        self._found_empty: set[tuple[str, int]] = set()
        #: The moment (monotonic) at which to claim from channels; None: as far as is known, no message has one.
        self._channels_due: float | None = None
        #: Whether a scan is under way that may be long; and whether lanes may be due of which nobody knows.
        self._unheard = self._is_unsure = False
        #: Number of scans so far.
        self.scans = 0

    def serves(self, queue: str) -> bool:
        """Bare queues are polled by the application's own code."""
        return BARE not in queue and queue not in self._excluded

    def scan_begins(self) -> None:
        """It may be long, and until it ends nobody hears of offers: what is known is claimed from every 10 ms."""
        soon = time.monotonic() + UNHEARD
        with self._lock:
            self._unheard = self._is_unsure = True
            for known in self._lanes.values():
                known.due = min(known.due, soon)
            if self._channels_due is not None:
                self._channels_due = min(self._channels_due, soon)

    def scan_has_ended(self) -> None:
        """Offers are heard again."""
        with self._lock:
            self._unheard = False

    def scanned(self, heads: Sequence[LaneHead], moment: float) -> None:
        """Take over what a scan at `moment` (monotonic) found. Lanes it did not find are empty or paused."""
        with self._lock:
            before, self._lanes = self._lanes, {}
            self._looked()
            for head in self._of_no_channel(heads, moment):
                name = head.queue, head.priority
                gone = before.pop(name, None)
                self._lanes[name] = known = _KnownLane(_watermark(head), 0.0, gone.misses if gone else 0)
                known.yields_at = gone.yields_at if gone else []
                known.expect(moment, head.due_in)
            for name, known in islice(before.items(), REMEMBERED):  # the latest come first
                self._lanes[name] = known
                known.rest()
            self.scans += 1

    def scanned_ahead(self, heads: Sequence[LaneHead], moment: float) -> None:
        """Take over what a scan behind the watermarks found: new lanes, and when known ones are due."""
        with self._lock:
            self._looked()
            self._expect(self._lanes, heads, moment)
            for head in self._of_no_channel(heads, moment):
                new = _KnownLane(_watermark(head), moment + max(0.0, head.due_in))
                self._lanes.setdefault((head.queue, head.priority), new)

    def _looked(self) -> None:
        """Of each lane it is known when it is due."""
        self._is_unsure = False
        self._turns.clear()
        self._found_empty.clear()

    def _of_no_channel(self, heads: Sequence[LaneHead], moment: float) -> list[LaneHead]:
        """The lanes among them; the others say when to claim from channels."""
        limited = [moment + max(0.0, head.due_in) for head in heads if is_limited(head.priority)]
        if limited:
            self._channels_due = min(limited if self._channels_due is None else [*limited, self._channels_due])
        return [head for head in heads if not is_limited(head.priority)]

    def known(self) -> list[Lane]:
        """All known lanes with their watermarks."""
        with self._lock:
            return [Lane(*name, known.watermark) for name, known in self._lanes.items()]

    def to_peek(self) -> list[Lane]:
        """The lanes that claims have found empty since the last call: nobody knows when they are due next. If there are
        few, all: others may have given messages back.
        """
        with self._lock:
            empty, self._found_empty = self._found_empty, set()
            names = self._lanes if len(self._lanes) <= MOST_NAMED else empty & self._lanes.keys()
            return [Lane(*name, self._lanes[name].watermark) for name in names]

    def peeked(self, lanes: Sequence[Lane], heads: Sequence[LaneHead], moment: float) -> None:
        """Take over when these lanes are due next, as a peek at `moment` found; their watermarks stay."""
        with self._lock:
            self._expect([(lane.queue, lane.priority) for lane in lanes], heads, moment)

    def _expect(self, names: Iterable[tuple[str, int]], heads: Sequence[LaneHead], moment: float) -> None:
        due_in = {(head.queue, head.priority): head.due_in for head in heads}
        self._turns.clear()
        for name in names:
            if known := self._lanes.get(name):
                if name in due_in:
                    known.expect(moment, due_in[name])
                else:
                    known.rest()

    def hint(self) -> bool:
        """Something was offered: any lane may be due. Returns whether at least one lane is known."""
        with self._lock:
            self._is_unsure = True
            for known in self._lanes.values():
                known.due = 0.0
            if self._channels_due is not None:
                self._channels_due = 0.0
            return bool(self._lanes) or self._channels_due is not None

    def yield_to_others(self, queue: str, priority: int, seconds: float) -> None:
        """A message of this lane is due again in `seconds`: let other workers go first then."""
        now = time.monotonic()
        with self._lock:
            if known := self._lanes.get((queue, priority)):
                known.yield_at(now + seconds, now)

    def expect(self, queue: str, priority: int, seconds: float) -> None:
        """A message of this lane was given back, and is due again in `seconds`."""
        due = time.monotonic() + seconds
        with self._lock:
            if known := self._lanes.get((queue, priority)):
                known.due, self._turns_until = min(known.due, due), min(self._turns_until, due)

    def expect_channels(self, due_in: float | None) -> None:
        """When to claim from channels again; None: when something is offered or found by a scan; or AS_BEFORE."""
        if due_in == AS_BEFORE:
            return
        with self._lock:
            latest = UNHEARD if self._unheard else float("inf")
            self._channels_due = time.monotonic() + (latest if due_in is None else min(latest, due_in))

    def knows_channels(self) -> bool:
        """Whether there are messages with a channel, as far as is known."""
        return self._channels_due is not None

    def channels_are_due(self) -> bool:
        """Whether there is something to claim from channels, besides the next messages of those that end."""
        return self._channels_due is not None and self._channels_due <= time.monotonic()

    def choose(self, *, has_room: bool = False) -> tuple[list[Lane], bool]:
        """The lanes to claim from, or True: to claim from channels. If both are due, either comes half of the times.

        has_room: the round trip ends messages of channels, so there may be room for others in these at once.
        """
        due = has_room or self.channels_are_due()
        if due and random.random() < 0.5:  # noqa: PLR2004, S311
            return [], True  # no lane has had its turn
        planned = self.plan()
        return planned, due and not planned

    def plan(self) -> list[Lane]:
        """The lanes to claim from, of those that are due: higher priorities first; equal ones take turns in being
        first, and in being named at all where there are many. All are named where nobody knows whether they are due:
        lower priorities would wait behind many that are not.
        """
        moment = time.monotonic()
        with self._lock:
            if self._is_unsure or moment >= self._turns_until:
                self._turns.clear()
            others = [self._turns.popleft() for _ in range(min(self._named, len(self._turns)))]
            return self._still_due(others, moment) or self._still_due(self._first_turns(moment), moment)

    def _first_turns(self, moment: float) -> list[tuple[str, int]]:
        """Whose turn it is now, of all lanes that are due. Of the highest priority, the others come in later plans:
        lower ones only beside all that are higher.
        """
        claim_at = {name: known.claim_at(moment) for name, known in self._lanes.items()}
        self._turns_until = min((at for at in claim_at.values() if at > moment), default=float("inf"))
        due = [name for name, at in claim_at.items() if at <= moment]
        random.shuffle(due)
        due.sort(key=itemgetter(1), reverse=True)
        named = len(due) if self._is_unsure else self._named
        self._turns.clear()
        self._turns.extend(takewhile(lambda name: name[1] == due[0][1], due[named:]))
        return due[:named]

    def _still_due(self, names: Iterable[tuple[str, int]], moment: float) -> list[Lane]:
        known = [(name, self._lanes[name]) for name in names]
        return [Lane(*name, one.watermark) for name, one in known if one.claim_at(moment) <= moment]

    def advance(self, planned: Sequence[Lane], claimed: Sequence[Claimed], asked: int) -> bool:
        """Raise the watermarks to what was claimed; says whether the planned lanes are exhausted."""
        exhausted = len(claimed) < asked
        full = None if exhausted or not claimed else (claimed[-1].queue, claimed[-1].priority)
        last = {(message.queue, message.priority): message.scheduled_at for message in claimed}
        with self._lock:
            self._named = MOST_NAMED if exhausted else min(MOST_NAMED, max(FEWEST_NAMED, 2 * len(last)))
            for name, scheduled_at in last.items():
                if known := self._lanes.get(name):
                    known.advance(scheduled_at, has_more=name == full)
            if exhausted:
                for lane in planned:
                    name = lane.queue, lane.priority
                    if known := self._lanes.get(name):
                        known.due = time.monotonic() + UNHEARD if self._unheard else float("inf")
                        known.misses += name not in last and not self._unheard
                        self._found_empty.add(name)
        return exhausted

    def due_in(self) -> float | None:
        """Seconds until the next message is due; None if none is known."""
        moment = time.monotonic()
        with self._lock:
            due = min((known.claim_at(moment) for known in self._lanes.values()), default=float("inf"))
            due = min(due, float("inf") if self._channels_due is None else self._channels_due)
        return None if due == float("inf") else due - moment

    def nothing_is_due(self) -> bool:
        """Whether nothing is known to be due; a claim from channels that met another one (TAKEN) knows of nothing."""
        due_in = self.due_in()
        return due_in is None or due_in > TAKEN


def _watermark(head: LaneHead) -> datetime:
    """The due time of the first message, or now (less SLACK) if that is due later: new offers lie above it."""
    return head.first_at if head.due_in <= 0 else _before(head.first_at, timedelta(seconds=head.due_in) + SLACK)


def _before(moment: datetime, delay: timedelta) -> datetime:
    try:
        return moment - delay
    except OverflowError:  # before the year 1
        return moment
