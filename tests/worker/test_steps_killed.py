"""Workers are killed at random while they run tasks of ten steps: each step's row is there exactly once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter

import pytest

from delayedq.models import FinishedMessage, Message, RecordedStep
from tests.app import stepping
from tests.app.models import Mark
from tests.worker.conftest import eventually
from tests.worker.test_fleet import children

pytestmark = pytest.mark.slow

MESSAGES, KILLS = 60, 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_that_are_killed_do_each_step_once(workers):
    stepping.walk.enqueue_many(((f"{number}",), {}) for number in range(MESSAGES))
    one, chance = workers("--lease", "1", "--processes", "2", "--threads", "4"), random.Random(20)
    for _ in range(KILLS):
        before = RecordedStep.objects.count()
        eventually(lambda before=before: RecordedStep.objects.count() > before or not Message.objects.exists())
        time.sleep(chance.random() / 10)
        if len(processes := children(one)) > 1:
            os.kill(chance.choice(processes[1:]), signal.SIGKILL)
    eventually(lambda: not Message.objects.exists())
    one.send(signal.SIGTERM)
    one.finish()

    wanted = {f"{name} {number}" for name in range(MESSAGES) for number in range(10)}
    assert Counter(Mark.objects.values_list("name", flat=True)) == Counter(wanted)
    assert FinishedMessage.objects.succeeded().count() == MESSAGES
    assert RecordedStep.objects.count() == 10 * MESSAGES
    assert max(FinishedMessage.objects.values_list("attempts", flat=True)) > 1
