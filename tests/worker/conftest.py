"""Real workers: `drain` runs one in the test's own process, `workers` starts the command; and a claimed message."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from delayedq.models import Worker
from delayedq.store.protocol import ClaimRequest
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode, Options
from tests.app.models import Mark
from tests.store.given import LANE, message
from tests.template import TEMPLATES
from tests.worker.exactly_once_tasks import claim_playing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def options():
    return Options(
        lease=timedelta(seconds=30),
        poll_interval=timedelta(milliseconds=200),
        shutdown_timeout=timedelta(seconds=5),
        threads=2,
        drain=True,
    )


@pytest.fixture
def drain(store, options):
    """Run what is due, in this process."""

    def run(chosen=options):
        return Loop(store, chosen, "test").run() in {ExitCode.DONE, ExitCode.RECYCLE}

    return run


@pytest.fixture
def claimed(store):
    """Claims a message, keyed "a", of an exactly-once task that does what a test wants."""
    return partial(claim_playing, store)


@pytest.fixture
def claim(store):
    """Claim `count` messages, and hold them in shared leases."""

    def claim(leases, count=1, lease=timedelta(hours=1), **fields):
        store.offer_many([message(scheduled_at=None, **fields)] * count)
        claimed = store.claim(ClaimRequest([LANE], count, lease, "worker"))
        assert len(claimed) == count
        return [(one, leases.hold(one.id, one.token)) for one in claimed]

    return claim


class Workers:
    """One `run_workers` with all its processes."""

    def __init__(self, environment, *flags):
        self.process = TEMPLATES.start(["run_workers", *flags], environment)

    def send(self, number):
        """To the supervisor, as a process manager does."""
        self.process.send_signal(number)

    def send_all(self, number):
        """To the whole group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ready(self):
        """Wait until one of its processes works: a signal that comes sooner may end it in its own way."""
        eventually(lambda: self.process.pid in map(_group, Worker.objects.values_list("pid", flat=True)))

    def finish(self, timeout=30):
        """Wait for the end; returns the exit code and what was printed."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output


@pytest.fixture
def workers(environment):
    """Start `run_workers`; whatever still runs at the end of the test is killed."""
    started = []

    def start(*flags, poll=2, **variables):
        started.append(Workers({**environment, "POLL_INTERVAL": str(poll), **variables}, *flags))
        return started[-1]

    yield start
    for one in started:
        one.send_all(signal.SIGCONT)
        one.send_all(signal.SIGKILL)
        output, _ = one.process.communicate(timeout=60)
        sys.stdout.write(output)  # pytest shows it if the test has failed


def _group(pid):
    with contextlib.suppress(ProcessLookupError):  # of one that was killed
        return os.getpgid(pid)


def marked(name):
    """Whether the task `chores.note` or `chores.nap` has left this mark."""
    return Mark.objects.filter(name=name).exists()


def eventually(condition, timeout=60.0):
    """Wait for another process: its effects can only be polled for, and a quarantined message is put off 10 s."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true in {timeout} s"
        time.sleep(0.02)
    return found
