"""Tasks that fork: a child that outlives its task keeps nothing from ending, and a clone runs no messages."""

from __future__ import annotations

import os
import signal

import pytest

from delayedq.models import FinishedMessage, Message
from tests.app import chores, once
from tests.app.models import Mark
from tests.worker.conftest import eventually

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("task", [chores.leave_child, chores.leave_process], ids=["fork", "multiprocessing"])
def test_a_child_that_outlives_its_task_does_not_keep_the_command_from_ending(workers, task):
    task.enqueue()
    one = workers("--shutdown-timeout", "60")
    eventually(FinishedMessage.objects.exists)
    one.send(signal.SIGTERM)
    assert one.process.wait(timeout=15) == 0
    one.send_all(signal.SIGKILL)  # the child


@pytest.mark.parametrize("error", [None, "stop"], ids=["returns", "raises"])
def test_a_task_that_ends_in_two_processes_leaves_no_clone_that_runs_messages(workers, error):
    chores.return_twice.enqueue("forked", error=error)
    chores.nap.enqueue_many((("later", 0.01), {}) for _ in range(30))
    one = workers("--threads", "1")
    eventually(lambda: Mark.objects.filter(name="later ended").count() >= 30 or None)
    eventually(lambda: not Message.objects.filter(kind=chores.nap.module_path).exists())
    assert Mark.objects.filter(name="later began").count() == 30
    assert Mark.objects.filter(name="forked").count() == 1
    assert len(set(Mark.objects.filter(name="later began").values_list("value", flat=True))) == 1
    one.send(signal.SIGTERM)
    assert one.process.wait(timeout=15) == 0


@pytest.mark.parametrize("task", [chores.fork_in_the_loop, chores.fork_in_the_orm], ids=["event loop", "thread"])
def test_a_clone_of_an_async_task_runs_no_other_and_ends(workers, task, tmp_path):
    turns = tmp_path / "turns"
    chores.log_turns.enqueue_many(((str(turns), 200), {}) for _ in range(5))
    task.enqueue()
    one = workers("--processes", "1")
    eventually(lambda: FinishedMessage.objects.count() == 6)
    assert turns.read_text().split() == turns.read_text().split()[:1] * 1_000
    one.send(signal.SIGTERM)
    assert one.process.wait(timeout=15) == 0
    _, output = one.finish()  # which a process that is left would keep open
    assert "the child ends" in output


def test_an_exactly_once_task_that_ends_in_two_processes_commits_once(workers):
    once.return_twice.enqueue("forked")
    one = workers("--threads", "1")
    eventually(FinishedMessage.objects.exists)
    assert FinishedMessage.objects.get().outcome == "succeeded"
    chores.note.enqueue("after")
    eventually(lambda: Mark.objects.filter(name="after").exists())
    assert Mark.objects.filter(name="forked").count() == 1
    one.send(signal.SIGTERM)
    assert one.process.wait(timeout=15) == 0
    assert os.WIFEXITED(0)
