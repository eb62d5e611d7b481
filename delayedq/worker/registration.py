"""Keeps the worker registry, which operators see: one statement every 10 s for all processes of a supervisor.

The lease keeper sends it, from what it reads in the shared leases: no task can hold it up.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.store import worker_registry
from delayedq.store.registry import Request, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from delayedq.store.base import Store
    from delayedq.worker.options import Options
    from delayedq.worker.shared_leases import SharedLeases

#: Seconds between two heartbeats of the workers.
EVERY = 10.0
#: While a process has not registered yet, the keeper checks every 0.5 s; that takes no statement.
SOON = 0.5
#: Rows of workers that could not deregister (host crash) are deleted after 1 h; other workers check every 10 min. So
#: they do for renewals beside locked rows that were left.
EXPIRE_AFTER = timedelta(hours=1)
EXPIRE_EVERY = 600.0
#: At most 100 running messages are named in a row.
NAMED = 100


def worker_name(pid: int, name: str = "") -> str:
    """The name of a worker process in leases, logs and the registry; `name` is what `run_workers --name` was given.

    >>> worker_name(4711, "mail")
    'mail@host:4711'
    """
    return f"{name}@{socket.gethostname()}:{pid}" if name else f"{socket.gethostname()}:{pid}"


class Registration:
    """The part of the lease keeper that writes the registry."""

    def __init__(self, store: Store, all_leases: Sequence[SharedLeases], options: Options, processes: int) -> None:
        self._store = store
        self._registry = worker_registry(store.alias)
        self._all_leases = all_leases
        self._options = options
        self._processes = processes
        self._known: set[str] = set()
        self._due = 0.0
        self._expire_at = 0.0

    def due_in(self) -> float:
        """Seconds until the next heartbeat is due."""
        if len(self._known) < self._processes:
            return SOON
        return max(0.0, self._due - time.monotonic())

    def update(self) -> None:
        """Write the heartbeats if they are due, or if a process is new. Raises django.db.Error."""
        present = [self._state(leases) for leases in self._all_leases if leases.pid]
        names = {worker.name for worker in present}
        if present and (names != self._known or time.monotonic() >= self._due):
            self._tell(self._heartbeat(present))
            self._due = time.monotonic() + EVERY
        self._known = names
        if time.monotonic() >= self._expire_at:
            self._registry.expire(EXPIRE_AFTER)
            self._store.sweep()
            self._expire_at = time.monotonic() + EXPIRE_EVERY

    def _heartbeat(self, present: Sequence[WorkerState]) -> dict[str, Request]:
        asked: dict[str, Request] = {}
        for first in (False, True):
            if some := [worker for worker in present if (worker.name not in self._known) == first]:
                asked |= self._registry.heartbeat(some, first=first)
        return asked

    def _tell(self, asked: Mapping[str, Request]) -> None:
        """Pass on what operators ask of the processes."""
        for leases in self._all_leases:
            if leases.pid:
                leases.ask(asked.get(self._name(leases)))

    def deregister(self, leases: SharedLeases) -> None:
        """Delete the row of a process that has ended. Raises django.db.Error."""
        if leases.pid:
            self._registry.deregister([self._name(leases)])

    def _state(self, leases: SharedLeases) -> WorkerState:
        entries = leases.entries()
        running = [entry.id for entry in entries if entry.started]
        return WorkerState(
            name=self._name(leases),
            host=socket.gethostname(),
            pid=leases.pid,
            threads=self._options.threads - leases.lost_threads,
            queues=",".join(self._options.queues or ()),
            excluded_queues=",".join(self._options.excluded),
            lease=self._options.lease.total_seconds(),
            age=leases.age(),
            held=len(entries),
            running=json.dumps(running[:NAMED]),
            problems=", ".join(self._problems(leases)),
        )

    def _name(self, leases: SharedLeases) -> str:
        return worker_name(leases.pid, self._options.name)

    def _problems(self, leases: SharedLeases) -> Iterator[str]:
        if leases.asked:
            yield f"asked to {leases.asked}" if leases.asked is not Request.QUIET else "quiet"
        if leases.deaf:
            yield "deaf listener"
        if leases.lost_threads:
            yield f"{leases.lost_threads} of {self._options.threads} threads lost"
