"""An elastic fleet for real: processes that come with a backlog and go after it, and do not leave what they run."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from delayedq.models import FinishedMessage, Worker
from tests.app import chores
from tests.worker.conftest import eventually

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["postgresql", "sqlite"], indirect=True)]


def children(process):
    pid = process.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_processes_grow_with_a_backlog_and_shrink_after_it(workers):
    """Each process has one thread, and each message takes 0.2 s: one process would take 60 s."""
    chores.nap.enqueue_many([(("short", 0.2), {})] * 300)
    flags = ("--processes", "1-3", "--threads", "1", "--scale-on", "latency=2s,patience=4s", "--no-cron")
    one = workers(*flags)
    eventually(lambda: Worker.objects.count() == 3)
    eventually(lambda: FinishedMessage.objects.count() == 300)
    eventually(lambda: Worker.objects.count() == 1)
    chores.nap.enqueue("last", 0.0)
    eventually(lambda: FinishedMessage.objects.count() == 301)
    one.send(signal.SIGTERM)
    code, output = one.finish()

    assert code == 0
    assert set(FinishedMessage.objects.values_list("attempts", flat=True)) == {1}
    sizes = [tuple(map(int, found)) for found in re.findall(r"(\d+) worker processes instead of (\d+)", output)]
    assert sizes[0][1] == 1
    assert max(after for after, _ in sizes) == 3
    assert sizes[-1][0] == 1


def test_what_a_process_runs_when_it_retires_is_finished_however_long_it_takes(workers):
    """With a shutdown timeout of a second: that is for a stop."""
    chores.nap.enqueue_many([(("short", 0.5), {})] * 16 + [(("long", 9.0), {})] * 2)
    one = workers(
        *("--processes", "1-2", "--threads", "1", "--scale-on", "latency=2s,patience=0s", "--no-cron"),
        *("--shutdown-timeout", "1"),
    )
    eventually(lambda: Worker.objects.count() == 2)
    eventually(lambda: FinishedMessage.objects.count() == 18)
    eventually(lambda: Worker.objects.count() == 1)
    one.send(signal.SIGTERM)
    one.finish()

    assert set(FinishedMessage.objects.values_list("attempts", "outcome")) == {(1, "succeeded")}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_that_asks_the_database_is_replaced_and_that_is_said(workers):
    one = workers("--processes", "1-2", "--threads", "1", "--scale-on", "latency=2s", "--no-cron")
    eventually(Worker.objects.exists)

    def asking():
        """Neither a worker nor the lease keeper, which is started first."""
        _, *others = children(one)
        return {*others} - {*Worker.objects.values_list("pid", flat=True)}

    (before,) = eventually(asking)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: asking() - {before})
    one.send(signal.SIGTERM)
    _, output = one.finish()

    assert re.findall(rf"how many worker processes it needs \(pid {before}\) died \(signal SIGKILL\)", output)
    assert output.count("how many worker processes it needs") == 1
