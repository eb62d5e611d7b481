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

from tests.upgrades.rolling import ROOT, command, disturbed, run_on

RATE = 200
FILL = """
INSERT INTO delayedq_finishedmessage (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, payload)
SELECT -n, now() - n * interval '1 second', now(), now(), now(), 0, 1, 1, 'succeeded', 'mail', 'k', ''
FROM generate_series(1, 200000) AS n
"""


def convert(folder):
    from django.db import connection

    from delayedq.torture.audit import read

    audit, ran = folder / "audit", {}
    with connection.cursor() as cursor:
        cursor.execute(FILL)

    def partition(scene):
        if ran:  # it is one already
            time.sleep(1)
            return
        run_on(scene, "before", audit, ran)
        words = command(ROOT, "-m", "django", "delayedq", "partition")
        subprocess.run(words, check=True, stdout=sys.stderr)
        run_on(scene, "after", audit, ran)

    report, told = disturbed("partition", partition, audit, RATE)
    faults = [event.at for event in read(audit) if event.what in {"fault", "over"}]
    ends = [event.at for event in read(audit) if event.what == "ended" and faults[0] < event.at < faults[1]]
    longest = max(later - earlier for earlier, later in pairwise(sorted(ends))) / 1e9
    about = {"violations": told, "ran": ran, "messages": report.messages, "longest": longest}
    print(json.dumps(about))  # noqa: T201


if __name__ == "__main__":
    django.setup()
    convert(Path(sys.argv[1]))
