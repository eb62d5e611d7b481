"""How many messages a worker holds: enough that its threads never wait for the database, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.protocol import Claimed
    from delayedq.worker.executor import AttemptResult

#: A worker claims ahead what keeps its threads busy for 0.1 s.
HORIZON = 0.1
#: Messages in one claim, messages claimed ahead, and bytes of payload among them, at most. While the database works
#: on one batch, the threads work on the other.
BATCH = 512
AHEAD = 2 * BATCH
BATCH_BYTES = 16_000_000
_WEIGHT = 0.05


class Prefetch:
    """Running means of how long a message occupies a thread, and of how large it is.

    Slow tasks are claimed one per free thread, so that no message waits in a busy process while another is idle.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._seconds = HORIZON
        self._bytes = 1_000.0

    def ran(self, results: Sequence[AttemptResult]) -> None:
        """Learn from these attempts how long a task takes."""
        occupied = [one.finished - one.started for one in results if one.started is not None and one.attempt.threaded]
        if occupied:
            self._seconds = _mean(self._seconds, sum(occupied) / len(occupied), len(occupied))

    def came(self, claimed: Sequence[Claimed], asynchronous: int) -> None:
        """Learn from a claim; `asynchronous` of its messages went to the event loop and occupy no thread."""
        if claimed:
            size = sum(len(message.payload) for message in claimed) / len(claimed)
            self._bytes = _mean(self._bytes, size, len(claimed))
            self._seconds = _mean(self._seconds, 0.0, asynchronous)

    def stalled(self) -> None:
        """Claimed messages waited too long for a thread: claim for free threads only, until tasks prove to be short."""
        self._seconds = max(self._seconds, 10 * HORIZON)

    def ahead(self) -> int:
        """How many messages to hold beyond those that run."""
        by_time = self._threads * HORIZON / max(self._seconds, 1e-6)
        return int(min(AHEAD, by_time, BATCH_BYTES / max(self._bytes, 1.0)))


def _mean(before: float, batch: float, count: int) -> float:
    kept: float = (1 - _WEIGHT) ** count
    return before * kept + batch * (1 - kept)
