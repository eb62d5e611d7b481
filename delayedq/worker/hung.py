"""Worker processes whose loop has stopped: a call into C holds the interpreter, and nothing in them can end it."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error

from delayedq.models import Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from delayedq.store.base import Store
    from delayedq.worker.shared_leases import SharedLeases

logger = logging.getLogger("delayedq")

#: Seconds between two observations that count at most: if this process was frozen too, the loop may have been as well.
LONGEST_GAP = 2.0
#: A loop that has nothing to do turns every 3 s; a limit that is lower than this is not taken at its word.
SHORTEST_LIMIT = 6.0


class HungWorkers:
    """Observes the loops of `all_leases`; a process whose loop is silent for `limit` is killed, and that is logged."""

    def __init__(self, store: Store, all_leases: Sequence[SharedLeases], limit: timedelta) -> None:
        self._store = store
        self._all_leases = all_leases
        self._limit = max(SHORTEST_LIMIT, limit.total_seconds())
        self._observed_at = time.monotonic()
        #: By process: the last turn seen, and the seconds observed since.
        self._silences: dict[int, tuple[int, float]] = {}
        #: Why each process was killed.
        self.reasons: dict[int, str] = {}

    def end(self) -> None:
        """Observe every loop once; call it every second or so."""
        moment = time.monotonic()
        gap = min(moment - self._observed_at, LONGEST_GAP)
        self._observed_at = moment
        before, self._silences = self._silences, {}
        for leases in self._all_leases:
            if pid := leases.pid:
                turned, silence = before.get(pid, (leases.turned, 0.0))
                silence = silence + gap if turned == leases.turned else 0.0
                self._silences[pid] = leases.turned, silence
                if silence >= self._limit and pid not in self.reasons and leases.is_alive():
                    self._kill(leases, pid, silence)

    def _kill(self, leases: SharedLeases, pid: int, silence: float) -> None:
        self.reasons[pid] = f"Worker process {pid} was ended: its loop was silent for {silence:.0f} s."
        started = [entry.id for entry in leases.entries() if entry.started]
        rows = self._rows(started)
        logger.error(
            "Worker process %s is ended: its loop was silent for %.0f s (a call into C that holds the GIL, or a signal "
            "receiver that does not return?). It ran: %s.",
            pid, silence, ", ".join(f"{kind} {id_}" for id_, kind, _ in rows) or started or "nothing",
            extra={"pid": pid, "message_ids": started, "queues": sorted({queue for *_, queue in rows})},
        )  # fmt: skip
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _rows(self, ids: Sequence[int]) -> list[tuple[int, str, str]]:
        with suppress(Error):
            return list(Message.objects.using(self._store.alias).filter(id__in=ids).values_list("id", "kind", "queue"))
        return []
