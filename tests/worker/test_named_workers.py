"""`run_workers --name` and `--exclude-queues`."""

from __future__ import annotations

import signal
import socket

from delayedq.models import FinishedMessage, Message, Worker
from delayedq.operations.workers import serves
from tests.app import chores
from tests.worker.conftest import eventually


def test_a_name_is_in_the_registry_the_leases_and_the_log(workers):
    chores.nothing.enqueue()
    one = workers("--name", "mail-1")
    (worker,) = eventually(lambda: FinishedMessage.objects.exists() and Worker.objects.all())
    assert worker.name == f"mail-1@{socket.gethostname()}:{worker.pid}"
    assert FinishedMessage.objects.get().worker == worker.name
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert f"{worker.name} started" in output
    assert not Worker.objects.exists()


def test_excluded_queues_are_left_to_others(workers):
    for queue in ("mail", "slow", "bulk, with a comma"):
        chores.note.using(queue_name=queue).enqueue(queue)
    one = workers("--exclude-queues", "slow, bulk", "--name", "quick")
    eventually(FinishedMessage.objects.exists)
    chores.note.using(queue_name="new").enqueue("new")
    eventually(lambda: FinishedMessage.objects.count() == 3)
    (worker,) = eventually(Worker.objects.all)
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0

    assert Message.objects.get().queue == "slow"
    assert (worker.queues, worker.excluded_queues) == ("", "slow,bulk")
    assert (serves(worker, "mail"), serves(worker, "slow")) == (True, False)


def test_a_drain_does_not_wait_for_excluded_queues(workers):
    for queue in ("mail", "slow"):
        chores.note.using(queue_name=queue).enqueue(queue)
    code, output = workers("--exclude-queues", "slow", "--drain").finish()
    assert code == 0, output
    assert "serve all queues but slow." in output
    assert Message.objects.get().queue == "slow"
    code, output = workers("--queues", "mail,slow", "--exclude-queues", "mail", "--drain").finish()
    assert code == 0, output
    assert "serve slow." in output
    assert not Message.objects.exists()
