"""One torture run: start the fleets and the producers, disturb them, wait until all has ended, and judge."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from django.db import Error, connections

from delayedq import schedules
from delayedq.exceptions import InvalidSchedule
from delayedq.management.development import own_django
from delayedq.models import FinishedMessage, Message, Worker
from delayedq.operations.pruning import prune
from delayedq.torture import tasks
from delayedq.torture.audit import BACKEND, FOLDER, KINDS, read, write
from delayedq.torture.faults import OURS, Scene
from delayedq.torture.judge import Ended, History, Rules, judge
from delayedq.torture.processes import PATIENCE, Process, thaw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.torture.audit import Event
    from delayedq.torture.judge import Violation

FLEETS, PROCESSES, THREADS, PRODUCERS = 2, 2, 8, 2
#: Seconds: of a lease, between two faults, and until everything must have ended. What kills its process is put off for
#: 10 s each time.
LEASE, PAUSE, DRAINED = 3.0, (0.5, 3.0), 180.0
SCHEDULE = "delayedq torture: each second"

RULES = Rules(
    max_attempts=dict.fromkeys(vars(tasks), tasks.MANY) | {"doomed": tasks.FEW, "poison": tasks.FEW},
    concurrency={"limited": tasks.CONCURRENCY},
    per_channel={"lined_up": tasks.CHANNEL},
)


class Plan(NamedTuple):
    """What is asked for. `faults`: the names of those that may happen; `rate`: messages a second, all producers;
    `prefix`: what stands before the command of a process, by its role and number ("fleet 0"): another host, say;
    `judged`: the audit without the lines that tell of what the database has lost, where a fault makes it lose any.
    """

    backend: str
    seed: int
    seconds: float
    rate: int
    faults: Mapping[str, Callable[[Scene], None]]
    prefix: Callable[[str], Sequence[str]] = lambda _: ()
    judged: Callable[[Sequence[Event]], Sequence[Event]] = lambda events: events


class Report(NamedTuple):
    """What came of it. `recovered`: by fault, the seconds until as much ended as is made, the longest of each."""

    seed: int
    seconds: float
    messages: int
    attempts: int
    ended_twice: int
    faults: Counter[str]
    recovered: dict[str, float]
    violations: Sequence[Violation]


class Torture:
    """Holds the processes of a run; a context manager that ends them all, however it is left."""

    def __init__(self, store: Store, plan: Plan, folder: Path) -> None:
        self._store, self._plan, self._folder = store, plan, folder
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret
        self._all = ExitStack()
        self._producers: list[Process] = []
        self._fleets: list[Process] = []
        self._names = 0

    def __enter__(self) -> Self:
        os.environ |= {FOLDER: str(self._folder), BACKEND: self._plan.backend, "PGAPPNAME": OURS}
        self._log = self._all.enter_context((self._folder / "output.log").open("ab"))
        return self

    def __exit__(self, *_: object) -> None:
        for one in [*self._producers, *self._fleets]:
            for pid in [one.pid, *one.children()]:
                thaw(pid)
            one.kill_all()
        with suppress(InvalidSchedule, Error):
            schedules.delete(SCHEDULE)
        self._all.close()

    def run(self) -> Report:
        """Raises django.db.Error if the database is away at the beginning or at the end."""
        since, began = self._store.now(), time.monotonic()
        schedules.create(SCHEDULE, tasks.tick, every=timedelta(seconds=1), misfire="all", overlap="allow")
        self._fleets += [self._start("fleet", f"{number}") for number in range(FLEETS)]
        self._producers += [self._produce() for _ in range(PRODUCERS)]
        self._until_they_run()
        self._disturb(time.monotonic() + self._plan.seconds)
        self._drain()
        events, rows = self._plan.judged(read(self._folder)), self._ended(since)
        history = History(events, rows, self._live())
        twice = Counter(run.id for run in history.runs if run.how == "returned" and run.kind != "keyed")
        return Report(
            seed=self._plan.seed,
            seconds=time.monotonic() - began,
            messages=len(rows),
            attempts=len(history.runs),
            ended_twice=sum(number - 1 for number in twice.values()),
            faults=Counter(event.about[0] for event in history.by_what["fault"]),
            recovered=recoveries(history),
            violations=judge(history, RULES),
        )

    def clean(self) -> int:
        """Delete what the run has left in the history; returns how many rows that was."""
        until = self._store.now()
        return sum(
            batch.deleted
            for dead in (False, True)
            for batch in prune(self._store, until, dead_letters=dead, queue=tasks.QUEUE)
        )

    # Load

    def _start(self, role: str, *words: str) -> Process:
        command = [*own_django(), "delayedq", "torture", "--backend", self._plan.backend, "--role", role, *words]
        return Process([*self._plan.prefix(f"{role} {words[0]}"), *command], self._log)

    def _produce(self) -> Process:
        self._names += 1
        rate = max(1, self._plan.rate // PRODUCERS)
        return self._start(
            "producer", f"{self._plan.seed}-{self._names}", str(self._random.randrange(10**9)), str(rate)
        )

    def _until_they_run(self) -> None:
        """Who starts while the database is away may give up: nothing is broken before all have begun."""
        until = time.monotonic() + PATIENCE
        while not self._they_run() and time.monotonic() < until:
            time.sleep(0.1)

    def _they_run(self) -> bool:
        stored = {event.pid for event in read(self._folder) if event.what == "stored"}
        workers = {*Worker.objects.using(self._store.alias).values_list("pid", flat=True)}
        fleets = [workers.intersection(fleet.children()) for fleet in self._fleets]
        return {one.pid for one in self._producers} <= stored and all(len(one) == PROCESSES for one in fleets)

    def _disturb(self, until: float) -> None:
        scene = Scene(self._fleets, self._producers, self._random, self._store, LEASE)
        self._rest(min(5.0, self._plan.seconds / 4))  # so that there is something to disturb
        while time.monotonic() < until and self._plan.faults:
            name = self._random.choice([*self._plan.faults])
            write("fault", name)
            self._plan.faults[name](scene)
            write("over", name)
            self._rest(self._random.uniform(*PAUSE))
        self._rest(until - time.monotonic())

    def _rest(self, seconds: float) -> None:
        """Producers that were killed are followed by others, which have keys of their own."""
        for number, one in enumerate(self._producers):
            if not one.is_alive:
                self._producers[number] = self._produce()
        time.sleep(max(0.0, seconds))

    def _drain(self) -> None:
        for one in self._producers:
            one.end()
        schedules.disable(SCHEDULE)
        until = time.monotonic() + DRAINED
        while self._live() and time.monotonic() < until:
            time.sleep(0.2)
        for one in self._fleets:
            one.end()

    # What the database says

    def _live(self) -> list[int]:
        rows = Message.objects.using(self._store.alias).filter(kind__startswith=KINDS)
        return [*rows.values_list("pk", flat=True)]

    def _ended(self, since: datetime) -> list[Ended]:
        rows = FinishedMessage.objects.using(self._store.alias).filter(kind__startswith=KINDS, finished_at__gte=since)
        found = (Ended._make(row) for row in rows.values_list(*Ended._fields).iterator())
        return [
            one._replace(kind=one.kind.removeprefix(KINDS), result=json.loads(one.result) if one.result else None)
            for one in found
        ]


#: Of how much of the usual rate a queue has recovered, and over how long that is measured (ns).
RECOVERED, SPAN = 0.95, 500_000_000


def recoveries(history: History) -> dict[str, float]:
    """By fault, the longest time in seconds from its end until as much ended again as before the first fault."""
    ends = Counter(event.at // SPAN for event in history.by_what["ended"])
    faults = history.by_what["fault"]
    before = [ends[span] for span in ends if not faults or span < faults[0].at // SPAN]
    usual = sorted(before)[len(before) // 2] if before else 0
    busy = sorted(span for span, number in ends.items() if number >= RECOVERED * usual)
    found: dict[str, float] = {}
    for event in history.by_what["over"]:
        first = event.at // SPAN
        span = next((one for one in busy if one >= first), None)
        if span is not None:
            name = event.about[0]
            found[name] = max(found.get(name, 0.0), max(0, span * SPAN - event.at) / 1e9)
    return found


def torture(store: Store, plan: Plan, folder: Path | None = None, *, keep: bool = False) -> Report:
    """Run it, and delete what it has stored unless something did not hold or `keep` is set.

    folder: an empty directory for the audit and for the output of the processes; None: a temporary one.
    """
    chosen = folder or Path(tempfile.mkdtemp(prefix="delayedq-torture-"))
    with Torture(store, plan, chosen) as running:
        report = running.run()
        if not keep and not report.violations:
            running.clean()
    connections[store.alias].close()
    return report
