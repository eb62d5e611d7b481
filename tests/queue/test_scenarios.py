"""What the seeds ask of a queue and no other test of it shows; SCENARIOS.md knows all of it by numbers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from delayedq import DelayedQueue
from delayedq.conf import get_settings
from delayedq.models import Message
from delayedq.queue import CONFIRMATION, History
from tests.queue.test_payloads import Moments
from tests.store.given import NOW, outcomes
from tests.worker.attempts import PATIENCE

DONE, LOST = "acknowledged", "lease_lost"


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("acknowledge", []), ("reject", []), ("release", []), ("fail", ["no"]), ("defer", [NOW])],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_d21_a_key_used_again_within_the_same_instant_is_another_message(queue, verb, arguments):
    """The clock stands still, and key, payload and time are the same: nothing but the lease tells them apart."""
    queue.offer_or_update("a", 1, NOW)
    old = queue.try_poll()
    queue.drop_message("a")
    queue.offer_or_update("a", 1, NOW)
    new = queue.try_poll()

    assert getattr(old, verb)(*arguments) == LOST
    assert not old.extend(queue.leases.duration())
    assert new.acknowledge() == DONE
    assert outcomes() == ["cancelled", "succeeded"]


class Fussy(Moments):
    """Reads nothing, and counts how often it was asked."""

    asked = 0

    def deserialize(self, text):
        self.asked += 1
        raise ValueError(text)


def test_d6_a_payload_that_can_not_be_read_is_tried_once(make):
    make("times", Moments()).offer_or_update("a", NOW, NOW)
    queue = make("times", fussy := Fussy())

    assert [queue.try_poll(), queue.try_poll()] == [None, None]
    assert fussy.asked == 1


def test_d8_what_is_left_out_is_what_the_documentation_says(make, clock):
    """And None is the same as leaving it out."""
    for name, options in (("plain", {}), ("none", {"lease": None, "poll_interval": None, "max_attempts": None})):
        queue = DelayedQueue(name, clock=clock, **options)
        queue.offer_or_update("a", 1, NOW)
        queue.try_poll()
        row = Message.objects.get(queue=f"{name}|json")
        assert (row.max_attempts, row.leased_until) == (32_000, NOW + get_settings().LEASE)
        assert queue.patience() == get_settings().POLL_INTERVAL.total_seconds()
        assert queue.drop_message("a")
    assert outcomes() == ["cancelled"] * 2


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_c2_the_same_queue_in_two_databases_is_two_queues(make):
    here, there = make(), make(using="default", history=History.NONE)
    try:
        assert [queue.offer_if_not_exists("a", queue.leases.alias, NOW) for queue in (here, there)] == ["created"] * 2
        assert here.try_poll().acknowledge() == DONE
        assert here.try_poll() is None
        assert there.try_poll().payload == "default"
    finally:
        assert there.drop_all_messages(CONFIRMATION) == 1


POLL = """
import signal
import django; django.setup()
from delayedq import DelayedQueue
from delayedq.queue.watch import Watch

def wait(self, seconds, wait=Watch.wait):
    print("waiting", flush=True)
    wait(self, seconds)

signal.signal(signal.SIGINT, signal.default_int_handler)
Watch.wait = wait
try:
    DelayedQueue("contacts").poll()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_b11_an_interrupt_ends_a_poll(queue, environment):
    environment["POLL_INTERVAL"] = "3600"
    command = [sys.executable, "-c", POLL]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout.readline() == "waiting\n"
        consumer.send_signal(signal.SIGINT)
        said, _ = consumer.communicate(timeout=PATIENCE)
    assert said.splitlines()[-1] == "interrupted"
    assert consumer.returncode == 0
