"""Tasks that can't be interrupted: their process is ended and replaced, and the message is a dead letter at last."""

from __future__ import annotations

import json
import signal

import pytest
from django.utils import timezone

from delayedq.models import FinishedMessage, Message, Worker
from tests.app import chores
from tests.app.models import Mark
from tests.worker.conftest import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("alias", ["postgresql"], indirect=True),
    pytest.mark.timeout(400),
]


def ended(key):
    return FinishedMessage.objects.filter(key=key).first()


def make_due():
    """What waits for its backoff is due now."""
    Message.objects.filter(lease_token=None).update(scheduled_at=timezone.now())
    return True


def test_a_call_that_holds_the_interpreter_ends_as_a_dead_letter_and_stops_nobody(workers):
    chores.hold_interpreter.schedule_at(timezone.now(), key="guilty")
    one = workers("--lease", "2", "--threads", "2", HUNG_AFTER="2")
    eventually(lambda: Mark.objects.filter(name="holds").exists())
    chores.note.enqueue_many((("innocent", str(number)), {}) for number in range(20))
    eventually(lambda: make_due() and not Message.objects.exists(), 200)
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    letter = ended("guilty")
    assert (letter.outcome, letter.attempts) == ("failed", 3)
    records = json.loads(letter.errors)
    assert [record["exception"].rpartition(".")[2] for record in records] == ["WorkerHung"] * 3 + ["WorkerVanished"]
    assert "its loop was silent" in records[-1]["message"]
    pids = set(Mark.objects.filter(name="holds").values_list("value", flat=True))
    assert len(pids) == 3
    for pid in pids:
        assert f"Worker process {pid} is ended: its loop was silent" in output
    assert f"{chores.hold_interpreter.module_path} {letter.id}" in output
    # Those that ran beside it may have run again: their ends were not stored when the process was ended.
    assert set(Mark.objects.filter(name="innocent").values_list("value", flat=True)) == set(map(str, range(20)))
    assert FinishedMessage.objects.succeeded().count() == 20


def test_a_thread_that_is_lost_is_reported_and_its_process_replaced(workers):
    chores.hold_thread.schedule_at(timezone.now(), key="guilty")
    one = workers("--lease", "2", "--threads", "2", HUNG_AFTER="0.5")
    eventually(lambda: make_due() and ended("guilty"), 150)
    chores.note.enqueue("innocent")
    eventually(lambda: Mark.objects.filter(name="innocent").exists())
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    letter = ended("guilty")
    assert (letter.outcome, letter.attempts) == ("failed", 3)
    assert "WorkerHung" in letter.errors
    assert "its thread is lost" in output
    assert "is replaced: 1 of its 2 threads are lost" in output
    assert len(set(Mark.objects.filter(name="thread held").values_list("value", flat=True))) == 3


def test_a_lost_thread_is_missing_in_the_capacity_of_its_worker(workers):
    chores.hold_thread.enqueue()
    one = workers("--lease", "2", "--threads", "4", HUNG_AFTER="0.5")
    worker = eventually(lambda: Worker.objects.filter(threads=3).first())
    assert worker.pid == int(Mark.objects.get(name="thread held").value)
    one.send_all(signal.SIGKILL)
