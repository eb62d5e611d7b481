"""Count what worker processes have done, for metrics: each counts, and one process adds up what all have counted.

A worker counts in the loop, a round trip at a time, and writes a file once a second if something has changed. The
reader adds what ended processes had counted to one file, and removes theirs: counters never go back, also when the
reader is replaced. That file names theirs too, so that a reader that dies before it has removed them adds none twice.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from delayedq.core.bounds import OTHERS
from delayedq.core.lifecycle import FinalOutcome
from delayedq.sql.priority import is_limited
from delayedq.store.sqlite.database import find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from delayedq.core.lifecycle import Decision
    from delayedq.store.protocol import Claimed
    from delayedq.worker.pool import Pool
    from delayedq.worker.store_thread import RoundTrip
    from delayedq.worker.transitions import AttemptResult

#: Upper bounds of the histograms, in seconds; the last bucket has no bound.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
#: So many pairs of queue and task are counted by name, in a process and in all together; others share the name OTHERS.
NAMES = 200
#: The file of what ended processes had counted.
ENDED = "ended"
#: Seconds between two writes of a file.
EVERY = 1.0

#: Name and labels of a count.
Key = tuple[str, ...]


class Counts:
    """Counters by name and labels; a histogram is a list: a count for each bucket, and the sum."""

    def __init__(self) -> None:
        self.counters: Counter[Key] = Counter()
        self.histograms: dict[Key, list[float]] = {}
        self.gauges: Counter[Key] = Counter()

    def observe(self, key: Key, seconds: float) -> None:
        buckets = self.histograms.setdefault(key, [0.0] * (len(BOUNDS) + 2))
        buckets[bisect_left(BOUNDS, seconds)] += 1
        buckets[-1] += seconds

    def add(self, other: Counts, named: Callable[[Key], Key], *, gauges: bool = True) -> None:
        """`named`: by which key to count. `gauges` False: its process has ended, and has no state."""
        for key, number in other.counters.items():
            self.counters[named(key)] += number
        for key, buckets in other.histograms.items():
            mine = self.histograms.setdefault(named(key), [0.0] * len(buckets))
            mine[:] = [one + more for one, more in zip(mine, buckets, strict=True)]
        if gauges:
            self.gauges.update(other.gauges)

    def dumps(self) -> str:
        return json.dumps([[[*key, value] for key, value in one.items()] for one in self._parts()])

    @classmethod
    def loads(cls, text: str) -> Counts:
        """Raises ValueError."""
        counts = cls()
        for part, rows in zip(counts._parts(), json.loads(text), strict=True):
            part.update({tuple(key): value for *key, value in rows})
        return counts

    def _parts(self) -> tuple[dict[Key, float] | dict[Key, list[float]], ...]:
        return self.counters, self.histograms, self.gauges  # type: ignore[return-value]  # a Counter of floats, too


class Tally:
    """Belongs to the loop of one worker process. `directory` is that of all processes of a supervisor; None: nobody
    reads it, and nothing is counted.
    """

    def __init__(self, directory: Path | None, database: str) -> None:
        self._directory = directory
        self._database = database
        self._counts = Counts()
        self._names: dict[Key, Key] = {}
        self._write_at = 0.0
        self._written = ""

    def round_trip(self, made: RoundTrip, concluded: Sequence[tuple[AttemptResult, Decision]]) -> None:
        """Count what came back, and what became of the messages that it settled."""
        if self._directory is None:
            return
        counters, where = self._counts.counters, self._database
        self._counts.observe(("round_trip_seconds", where), made.ended_at - made.began_at)
        if made.claims and made.error is None:
            counters["claims", where] += 1
            counters["empty_claims", where] += not made.answer.claimed
            counters["claimed_messages", where] += len(made.answer.claimed)
        self._deadlines(made.answer.claimed)
        for result, decided in concluded:
            lost = result.attempt.id in made.answer.settled.lost
            self.ended(result, None if decided.outcome is None else str(decided.outcome), lost=lost)

    def committed(self, result: AttemptResult) -> None:
        """Count an attempt that was settled in one transaction with what its task did."""
        is_replaced = result.settled is not None and bool(result.settled.superseded)
        self.ended(result, None if is_replaced else FinalOutcome.SUCCEEDED)

    def ended(self, result: AttemptResult, outcome: str | None, *, lost: bool = False) -> None:
        """Count an attempt. `outcome` None: its message waits for another one."""
        if self._directory is None:
            return
        counters, names = self._counts.counters, self._named(result.attempt.claimed)
        if lost:
            counters["lease_losses", *names] += 1
        elif outcome is not None:
            counters["ended", *names, outcome] += 1
        elif result.started is not None:
            counters["retries", *names] += 1
        if result.started is not None:
            counters["started", *names] += 1
            self._counts.observe(("run_seconds", *names), result.finished - result.started)

    def state(self, pool: Pool, held: int, given_up: int = 0) -> None:
        """Set what the process has now, and write the file if that is due. `held`: messages that are not settled;
        `given_up`: connections, since the process began.
        """
        if self._directory is None or time.monotonic() < self._write_at:
            return
        if given_up:
            self._counts.counters["connections_given_up", self._database] = given_up
        running = min(pool.occupying(), pool.size) + pool.in_event_loop
        for name, value in (
            ("threads", pool.size),
            ("threads_lost", len(pool.lost)),
            ("running", running),
            ("held", held),
        ):
            self._counts.gauges[name, self._database] = value
        self.write()

    def write(self) -> None:
        """Write the file if something has changed."""
        if self._directory is None:
            return
        self._write_at = time.monotonic() + EVERY
        text = self._counts.dumps()
        if text != self._written and _write(self._directory / f"{os.getpid()}", text):
            self._written = text

    def _deadlines(self, claimed: Iterable[Claimed]) -> None:
        """How late messages were claimed for the first time, by the clock of this host."""
        now = datetime.now(UTC)
        for message in claimed:
            if message.attempt == 1:
                late = max(0.0, (now - message.scheduled_at).total_seconds())
                name = "limited_latency_seconds" if is_limited(message.priority) else "latency_seconds"
                self._counts.observe((name, *self._named(message)[:2]), late)

    def _named(self, claimed: Claimed) -> Key:
        """The labels of a message: database, queue, task."""
        full = claimed.queue, claimed.kind
        found = self._names.get(full)
        if found is None:
            if len(self._names) >= NAMES:
                return self._database, OTHERS, OTHERS
            found = self._names[full] = (self._database, *full)
        return found


class Tallies:
    """All processes of a supervisor together. Any thread may ask: each scrape has its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        #: By their number (a queue, or a queue and a task), names that are counted apart.
        self._names: defaultdict[int, set[Key]] = defaultdict(set)

    def total(self) -> Counts:
        """What those that run have counted, and those that have ended."""
        with self._lock:  # or two would each add what a process had counted that has ended
            return self._total()

    def _total(self) -> Counts:
        ended, over, total = Counts(), {}, Counts()
        before, added = self._ended()
        ended.add(before, self._named)
        for path in sorted(self._directory.glob("[0-9]*")):
            if path.suffix:
                continue
            is_over = find(int(path.name)) is None
            if is_over and (mark := _mark(path)) in added:
                over[path] = mark  # who added it has died before it could remove it
            elif counts := _read(path):
                (ended if is_over else total).add(counts, self._named, gauges=not is_over)
                over |= {path: mark} if is_over else {}
        if over and _write(self._directory / ENDED, f"{ended.dumps()}\n{json.dumps([*over.values()])}"):
            for path in over:
                path.unlink(missing_ok=True)
        total.add(ended, self._named)
        return total

    def _ended(self) -> tuple[Counts, list[str]]:
        """What ended processes had counted, and the files of which that was added last."""
        try:
            counts, _, added = (self._directory / ENDED).read_text().partition("\n")
            return Counts.loads(counts), json.loads(added)
        except (OSError, ValueError):
            return Counts(), []

    def _named(self, key: Key) -> Key:
        """The key, with OTHERS for names that are too many. Names that were counted apart once always are."""
        names = key[2:4]
        known = self._names[len(names)]
        if not names or names in known or OTHERS in names:
            return key
        if len(known) < NAMES:
            known.add(names)
            return key
        return (*key[:2], *(OTHERS for _ in names), *key[4:])


def _read(path: Path) -> Counts | None:
    """None for a file that is not there, or has been written by half."""
    try:
        return Counts.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _mark(path: Path) -> str:
    """Differs for another process that has the same id, later."""
    with suppress(OSError):
        found = path.stat()
        return f"{path.name} {found.st_ino} {found.st_mtime_ns}"
    return ""


def _write(path: Path, text: str) -> bool:
    """Whether it is written: not on a disk that is full, which stops no worker. Readers find all or nothing."""
    with suppress(OSError):
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)
        return True
    return False
