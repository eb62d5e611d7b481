"""A replay whose executors are processes of their own, and are killed: each message is sent once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from delayedq.models import FinishedMessage, Message
from delayedq.pipeline.models import Load, ReplayedMessage
from tests.app import tasks
from tests.benchmarks.archive import FILL
from tests.pipeline.killing import EXECUTOR, PYTHON_WORKER, killed

ROWS = 51_000
REPLAY = [
    *("run_pipeline", "replay", "--since", "2013-03-01", "--until", "2013-04-01", "--state", "succeeded"),
    *("--state", "failed", "--replay-id", "again", "--send", "--master", "local-cluster[2,1,1024]"),
]


@pytest.fixture
def replay(java, environment, store, connection, tmp_path):
    """Starts the command on a month of history, which is in the database."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"rows": ROWS})
    FinishedMessage.objects.update(kind=tasks.nothing.module_path)
    started = []

    def start():
        command = [sys.executable, "-m", "django", *REPLAY, "--lake", str(tmp_path / "lake")]
        texts = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **texts))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def is_sending():
    return Load.objects.exclude(state="loaded").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_executors_and_python_workers_that_are_killed_send_nothing_twice(replay):
    process = replay()
    while process.poll() is None and not is_sending():
        time.sleep(0.02)
    ended = [killed(process, what, is_sending) for what in (PYTHON_WORKER, EXECUTOR)]
    for _ in range(3):
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert errors.splitlines()[-1].startswith("CommandError: "), errors[-3000:]
        process = replay()

    assert process.returncode == 0, errors[-3000:]
    assert any(ended)
    keys = set(Message.objects.values_list("key", flat=True))
    assert keys == {f"replay:again:{number}" for number in range(1, ROWS + 1)}
    assert Message.objects.count() == ReplayedMessage.objects.count() == ROWS
