"""Which worker processes live: rows that a lease keeper renews, for operators to see."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.database import Database


class WorkerState(NamedTuple):
    """A worker process that lives. `lease` and `age` are in seconds. `queues` has commas between, and "" means all but
    those of `excluded_queues`, which has them too.

    `held` is how many messages it has claimed, and `running` a JSON list of the ids of those that have started.
    `problems`: what is wrong with it, in words; "" if nothing is.
    """

    name: str
    host: str
    pid: int
    threads: int
    queues: str
    lease: float
    age: float
    held: int = 0
    running: str = "[]"
    problems: str = ""
    excluded_queues: str = ""


class WorkerRegistry:
    """That of one database. Every verb may raise django.db.Error."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def at(self, moment: datetime | None) -> Self:
        """The same registry, which writes and judges at this moment; None: by the database's clock."""
        return type(self)(self._database.at(moment))

    def heartbeat(self, workers: Sequence[WorkerState]) -> None:
        """These worker processes live: one statement, one row for each."""
        given = json.dumps([worker._asdict() for worker in workers])
        self._database.write(self._database.dialect.heartbeat, {"workers": given})

    def deregister(self, names: Collection[str]) -> None:
        """These worker processes have ended."""
        from delayedq.models import Worker  # stores are imported before the models are loaded

        Worker.objects.using(self._database.alias).filter(name__in=names).delete()

    def expire(self, silent_for: timedelta) -> None:
        """Delete the rows of worker processes whose last heartbeat is longer ago: they could not deregister."""
        from delayedq.models import Worker

        before = self._database.now() - silent_for
        Worker.objects.using(self._database.alias).filter(seen_at__lt=before).delete()
