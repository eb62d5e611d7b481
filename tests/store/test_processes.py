"""Processes that share nothing but the database."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest

from delayedq.models import FinishedMessage, Message
from tests.store.given import message

CONSUME = """
import django; django.setup()
from datetime import timedelta
from delayedq.store import default_store
from delayedq.core.lifecycle import FinalOutcome
from delayedq.store.protocol import ClaimRequest, Finish, Lane

store, done, lease = default_store(), [], timedelta(seconds=60)
print("ready", flush=True); input()
while True:
    ended = [Finish(claimed, FinalOutcome.SUCCEEDED, None, 0.0) for claimed in done]
    result = store.settle_and_claim(ended, ClaimRequest([Lane("mail", 0)], 10, lease, "worker"))
    done = [claimed for claimed in done if claimed.id in result.settled.busy] + result.claimed
    if result.settled.lost or not done:
        raise SystemExit(len(result.settled.lost))
    print(*[claimed.key for claimed in result.claimed], flush=True)
"""


def consumer(environment):
    return subprocess.Popen(
        [sys.executable, "-c", CONSUME], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_processes_end_every_message_exactly_once(store, environment):
    store.offer_many(message(f"{number}", scheduled_at=None) for number in range(500))
    with ExitStack() as running:
        consumers = [running.enter_context(consumer(environment)) for _ in range(2)]
        assert [process.stdout.readline() for process in consumers] == ["ready\n"] * 2
        outputs = [process.communicate("\n", timeout=60)[0].split() for process in consumers]

    assert [process.returncode for process in consumers] == [0, 0]
    assert Counter(key for output in outputs for key in output) == {f"{number}": 1 for number in range(500)}
    assert (Message.objects.count(), FinishedMessage.objects.succeeded().count()) == (0, 500)
