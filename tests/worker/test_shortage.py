"""A process in which a task has taken all file descriptors, or all memory, is replaced: others don't fail for it."""

from __future__ import annotations

import signal

import pytest

from delayedq.models import FinishedMessage, Message
from tests.app import chores
from tests.worker.conftest import eventually

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


@pytest.mark.parametrize(
    ("task", "what"), [(chores.leak_files, "file descriptors"), (chores.leak_memory, "memory")], ids=["files", "memory"]
)
def test_a_process_in_which_every_task_would_fail_is_replaced(workers, task, what):
    one = workers("--processes", "1", "--threads", "2")
    one.ready()
    task.enqueue()
    eventually(lambda: FinishedMessage.objects.filter(kind=task.module_path).exists())
    chores.need_much.enqueue_many([((), {})] * 20)
    eventually(lambda: not Message.objects.exists())
    assert FinishedMessage.objects.filter(kind=chores.need_much.module_path, outcome="succeeded").count() == 20
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0
    assert output.count(f"is replaced: its process has no {what} left.") == 1
