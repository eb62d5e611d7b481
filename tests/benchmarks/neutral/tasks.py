"""The task that the harness's load consists of."""

from __future__ import annotations

import time

from django.tasks import task

from tests.benchmarks.neutral.work import SLEEP, tell


@task
def job(offered_at: float, padding: str = "") -> None:
    waited = time.time() - offered_at
    time.sleep(SLEEP)
    tell(waited)
