"""Tasks of several steps."""

from __future__ import annotations

import time
from datetime import timedelta

from delayedq import current_message, task
from tests.app.models import Mark


@task(steps=["charge", "ship"])
def declared(names):
    """Calls a step of each of these names."""
    return [current_message().step(name, str, name) for name in names]


@task(max_attempts=1000, backoff=timedelta(), steps=["write"])
def walk(name):
    """Writes ten rows, each in a step of its own."""
    for number in range(10):
        current_message().step("write", _write, f"{name} {number}")


def _write(name):
    Mark.objects.create(name=name)
    time.sleep(0.01)
