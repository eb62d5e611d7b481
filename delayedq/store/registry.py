"""The registry of living worker processes: rows that a lease keeper renews, for operators to see."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.sql.columns import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.database import Database

# What the heartbeats of worker processes have in common on all databases.
#
# The workers are one JSON document. `now` may be NULL, for the database's clock.


#: What a heartbeat writes.
GIVEN = ("name", "host", "pid", "threads", "queues", "excluded_queues", "lease", "held", "running", "problems")

COLUMNS = listed(f"given.{name}" for name in GIVEN)

INSERT = f"INSERT INTO delayedq_worker ({listed(GIVEN)}, started_at, seen_at)"

#: What it changes of a worker that is known.
RENEWED = (*GIVEN[1:], "started_at", "seen_at")

#: What it answers, where the database lets an INSERT answer.
ANSWER = "RETURNING name, asked"

# With the first heartbeat of a process, what was asked of an earlier one of its name is forgotten: of one that was last
# seen before this one started. The times alone do not tell them apart: a heartbeat that is held up moves the start.
_ASKED = """asked = CASE WHEN %(first)s AND excluded.started_at > delayedq_worker.seen_at THEN ''
    ELSE delayedq_worker.asked END"""

ON_CONFLICT = f"""
ON CONFLICT (name) DO UPDATE SET {_ASKED}, {", ".join(f"{name} = excluded.{name}" for name in RENEWED)}
"""


# Registry


class WorkerCommand(StrEnum):
    """What an operator asks of a worker process."""

    QUIET = "quiet"  #: claim nothing until it is taken back
    STOP = "stop"  #: finish what runs, and end; no other process takes its place
    RESTART = "restart"  #: the same, and another process takes its place


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

    def heartbeat(self, workers: Sequence[WorkerState], *, first: bool = True) -> dict[str, WorkerCommand]:
        """These worker processes live: one statement, one row for each (on MySQL, a second one reads).

        Returns what operators ask of them, by name. With its `first` heartbeat, a process with the name of one that has
        ended is asked nothing.
        """
        given = json.dumps([worker._asdict() for worker in workers])
        heartbeat, parameters = self._database.heartbeat, {"workers": given, "first": first}
        if self._database.connection.features.can_return_rows_from_bulk_insert:
            rows = self._database.rows(f"{heartbeat} {ANSWER}", parameters)
        else:
            self._database.write(heartbeat, parameters)
            rows = self._asked([worker.name for worker in workers])
        return {name: WorkerCommand(asked) for name, asked in rows if asked in set(WorkerCommand)}

    def _asked(self, names: Collection[str]) -> list[tuple[Any, ...]]:
        from delayedq.models import Worker  # stores are imported before the models are loaded

        asked = Worker.objects.using(self._database.alias).filter(name__in=names).exclude(asked="")
        return [*asked.values_list("name", "asked")]

    def ask(self, name: str, request: WorkerCommand | None, by: str = "") -> bool:
        """Ask this of a worker process, which reads it with its next heartbeat; None takes back what was asked.

        False if there is no such process. `by`: the name of a user.
        """
        from delayedq.models import Worker

        workers = Worker.objects.using(self._database.alias).filter(name=name)
        return bool(workers.update(asked=request or "", asked_by=by))

    def deregister(self, names: Collection[str]) -> None:
        """These worker processes have ended."""
        from delayedq.models import Worker  # stores are imported before the models are loaded

        Worker.objects.using(self._database.alias).filter(name__in=names).delete()

    def expire(self, silent_for: timedelta) -> None:
        """Delete the rows of worker processes whose last heartbeat is longer ago: they could not deregister."""
        from delayedq.models import Worker

        before = self._database.now() - silent_for
        Worker.objects.using(self._database.alias).filter(seen_at__lt=before).delete()
