"""Real workers that are killed at random moments: at no instant more run in a channel than its limit allows."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from delayedq.models import FinishedMessage, Message
from tests.app import tasks
from tests.worker.conftest import eventually
from tests.worker.test_fleet import children

pytestmark = pytest.mark.slow

CHANNELS, MESSAGES, KILLS = 4, 160, 4


def test_however_often_workers_are_killed_no_more_run_than_the_limit_allows(workers, tmp_path):
    log = tmp_path / "log"
    tasks.write_down.enqueue_many(((f"tenant {number % CHANNELS}", str(log)), {}) for number in range(MESSAGES))
    one = workers("--lease", "10", "--threads", "8", "--processes", "2", poll=0.5)
    killed = {}
    for _ in range(KILLS):
        before = FinishedMessage.objects.count()
        eventually(lambda before=before: FinishedMessage.objects.count() >= min(before + 10, MESSAGES))
        process = random.choice(children(one)[1:])
        killed.setdefault(process, kill(process))
    eventually(lambda: not Message.objects.exists(), timeout=100)
    one.send(signal.SIGTERM)
    one.finish()

    assert FinishedMessage.objects.filter(outcome="succeeded").count() == MESSAGES
    assert most_at_once(log.read_text().splitlines(), killed) == 2


def test_however_often_workers_are_killed_no_more_start_than_the_rate_allows(workers, tmp_path):
    """4 in a second, and 2 at once: each attempt counts, also that of a message whose worker was killed."""
    log, each, began = tmp_path / "log", 24, time.monotonic_ns()
    names = [f"tenant {number}" for number in range(CHANNELS)]
    tasks.write_down_at_a_rate.enqueue_many(((name, str(log)), {}) for _ in range(each) for name in names)
    one = workers("--lease", "5", "--threads", "8", "--processes", "2", poll=0.5)
    for goal in (20, 40):
        eventually(lambda goal=goal: FinishedMessage.objects.count() >= goal)
        os.kill(random.choice(children(one)[1:]), signal.SIGKILL)
    eventually(lambda: not Message.objects.exists(), timeout=100)
    one.send(signal.SIGTERM)
    one.finish()

    lines = [line.split() for line in log.read_text().splitlines()]
    starts = defaultdict(list)
    for moment, what, _, _, number, _ in lines:
        if what == "began":
            starts[number].append((int(moment) - began) / 1e9)
    assert FinishedMessage.objects.filter(outcome="succeeded").count() == CHANNELS * each
    for moments in starts.values():
        assert all(count <= 2 + 4 * seconds for count, seconds in enumerate(sorted(moments), 1))


def kill(process):
    """Returns when: after all that it has begun, and before others are given what it held."""
    os.kill(process, signal.SIGSTOP)
    eventually(lambda: state_of(process) in "TZ")
    moment = time.monotonic_ns()
    os.kill(process, signal.SIGKILL)
    return moment


def state_of(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


def most_at_once(lines, killed):
    """The largest number of attempts that ran at one instant in one channel; a killed process ended all of its own."""
    moments = [(moment, "killed", process, None, None) for process, moment in killed.items()]
    for line in lines:
        moment, what, process, channel, number = line.replace("tenant ", "tenant_").split()
        moments.append((int(moment), what, int(process), channel, number))
    running, most = defaultdict(set), 0
    for _, what, process, channel, number in sorted(moments):
        if what == "began":
            running[channel].add((process, number))
            most = max(most, len(running[channel]))
        elif what == "ended":
            running[channel].discard((process, number))
        else:
            for each in running.values():
                each -= {one for one in each if one[0] == process}
    return most
