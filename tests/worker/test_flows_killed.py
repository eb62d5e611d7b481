"""Real workers that are killed again and again over flows: all of them end, and no step has an effect twice.

DELAYEDQ_SOAK_FLOWS=1000 has 1,000 flows of 20 steps, and a kill -9 in each second in which messages end, until all
flows have ended. Either a process of a worker dies, or a worker with all of its processes, as if its machine had lost
its power; then another worker starts in its place, since a worker pauses before it replaces processes that die young.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest

from delayedq import Flow, group
from delayedq.models import FinishedMessage, FlowMember, FlowStep, Message
from delayedq.models import Flow as Row
from tests.app import once
from tests.app.models import Mark
from tests.worker.conftest import eventually
from tests.worker.test_fleet import children

pytestmark = pytest.mark.slow

SOAK = int(os.environ.get("DELAYEDQ_SOAK_FLOWS", "0"))
FLOWS, KILLS, PATIENCE = (SOAK, 10_000, 3_000) if SOAK else (8, 3, 100)
#: Steps of one flow, and their messages.
STEPS, MESSAGES = 20, 22
HOSTS = 2


def one_flow(number):
    """A line, a group, branches and their meeting: 20 steps, each after one or two others."""
    flow = Flow(f"flow {number}")
    last = flow.add("0", once.leave_mark.si(f"{number}/0"))
    last = flow.add("1", group(once.leave_mark.si(f"{number}/1/{one}") for one in range(3)), after=last)
    for step in range(2, STEPS):
        before = [str(step - 1)] if step % 3 else [str(step - 1), str(step - 2)]
        flow.add(str(step), once.leave_mark.si(f"{number}/{step}"), after=before if step % 5 else [str(step - 2)])
    return flow.enqueue().id


def start(workers):
    return workers("--lease", "3", "--threads", "4", "--processes", "2", poll=0.3)


def kill_one(fleet, workers):
    number = random.randrange(len(fleet))
    processes = children(fleet[number])
    if processes and random.random() < 0.5:
        os.kill(random.choice(processes), signal.SIGKILL)
    else:
        fleet[number].send_all(signal.SIGKILL)
        fleet[number] = start(workers)


@pytest.mark.timeout(PATIENCE + 200)
def test_all_flows_end_and_no_step_has_an_effect_twice(workers):
    for number in range(FLOWS):
        one_flow(number)
    fleet = [start(workers) for _ in range(HOSTS)]
    killed, ended, began = 0, 0, time.monotonic()
    while killed < KILLS and Row.objects.filter(ended_at=None).exists():
        # Of processes that only start, as on a busy machine, none would ever come to work.
        now = FinishedMessage.objects.count()
        if now > ended:
            kill_one(fleet, workers)
            killed, ended = killed + 1, now
        time.sleep(1)
    eventually(lambda: not Row.objects.filter(ended_at=None).exists(), timeout=PATIENCE)
    sys.stdout.write(f"{FLOWS} flows, {killed} kills, {time.monotonic() - began:.0f} s\n")
    for one in fleet:
        one.send(signal.SIGTERM)
        one.finish()

    assert set(Row.objects.values_list("outcome", flat=True)) == {"succeeded"}
    assert not Message.objects.exists()
    assert set(FlowStep.objects.values_list("state", flat=True)) == {"succeeded"}
    assert FlowMember.objects.count() == FinishedMessage.objects.count() == FLOWS * MESSAGES
    assert Mark.objects.values("name").distinct().count() == Mark.objects.count() == FLOWS * MESSAGES
