"""The history becomes a table of partitions under load. Prints as JSON what the judge of `torture` finds, what each
fleet ran before and after it, and the longest time (in seconds) without any end.

    python -m tests.upgrades.partitioning FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import django

from tests.upgrades.rolling import ENOUGH, PATIENCE, ROOT, command, fleet, produce

RATE = 200
FILL = """
INSERT INTO delayedq_finishedmessage (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, payload)
SELECT -n, now() - n * interval '1 second', now(), now(), now(), 0, 1, 1, 'succeeded', 'mail', 'k', ''
FROM generate_series(1, 200000) AS n
"""


def convert(folder):
    from django.db import connections

    from delayedq.store import default_store
    from delayedq.torture import run
    from delayedq.torture.audit import read
    from delayedq.torture.processes import Process

    run.PRODUCERS = run.PROCESSES = 1
    store, audit, ran = default_store(), folder / "audit", {}
    audit.mkdir()
    with connections[store.alias].cursor() as cursor:
        cursor.execute(FILL)

    class Conversion(run.Torture):
        def _start(self, role, *words):
            return Process(command(ROOT, "-m", __spec__.name, role, *words), self._log)

    def run_on(scene, step):
        """Until each fleet has begun enough attempts in this step."""
        since, until = time.monotonic_ns(), time.monotonic() + PATIENCE
        while True:
            pids = [set(one.children()) for one in scene.fleets]
            began = [event.pid for event in read(audit) if event.what == "began" and event.at > since]
            ran[step] = [sum(pid in own for pid in began) for own in pids]
            if min(ran[step]) >= ENOUGH:
                return
            assert time.monotonic() < until, ran
            time.sleep(0.2)

    def partition(scene):
        if ran:  # it is one already
            time.sleep(1)
            return
        run_on(scene, "before")
        words = command(ROOT, "-m", "django", "delayedq", "partition")
        subprocess.run(words, check=True, stdout=sys.stderr)
        run_on(scene, "after")

    plan = run.Plan("default", 1, 1.0, RATE, {"partition": partition})
    with Conversion(store, plan, audit) as running:
        report = running.run()
        running.clean()
    told = [f"{one.invariant}: {one.text}" for one in report.violations]
    faults = [event.at for event in read(audit) if event.what in {"fault", "over"}]
    ends = [event.at for event in read(audit) if event.what == "ended" and faults[0] < event.at < faults[1]]
    longest = max(later - earlier for earlier, later in pairwise(sorted(ends))) / 1e9
    about = {"violations": told, "ran": ran, "messages": report.messages, "longest": longest}
    print(json.dumps(about))  # noqa: T201


if __name__ == "__main__":
    django.setup()
    match sys.argv[1:]:
        case ["fleet", number]:
            fleet(number)
        case ["producer", *words]:
            produce(*words)
        case [folder]:
            convert(Path(folder))
