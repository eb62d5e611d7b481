"""Archives whose executors are processes of their own, or that run over Spark Connect, and whose processes are killed.

Their rows are more than the command reads by itself. DELAYEDQ_TEST_SOAK=1, as in `.ci/nightly`, has more of them, and
kills more often.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from delayedq.models import FinishedMessage
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from tests.benchmarks.archive import FILL
from tests.pipeline.archives import forget_lease
from tests.pipeline.killing import EXECUTOR, PYTHON_WORKER, killed
from tests.pipeline.lake.files import ids as ids_of_lake

SOAK = os.environ.get("DELAYEDQ_TEST_SOAK") == "1"
ROWS = 300_000 if SOAK else 51_000
STEPS = (ArchiveState.PLANNED, ArchiveState.WRITTEN, ArchiveState.VERIFIED)
BOTH = (PYTHON_WORKER, EXECUTOR)
#: What is killed in each step: a process of each kind while files are written, and one of them in each later step.
VICTIMS = dict.fromkeys(STEPS, BOTH) if SOAK else dict(zip(STEPS, (BOTH, (PYTHON_WORKER,), (EXECUTOR,)), strict=True))
CLUSTER, CONNECT = ("--master", "local-cluster[2,1,1024]"), ("--remote", "local[2]")

pytestmark = [
    pytest.mark.parametrize("alias", ["postgresql"], indirect=True),
    pytest.mark.timeout(3_600 if SOAK else 600),
]


class Archive:
    """The command that archives all rows: started, and run again until it is done."""

    def __init__(self, environment, lake):
        self._environment = environment
        self._lake = str(lake)
        self.process = None

    def start(self, *where):
        forget_lease()
        command = [sys.executable, "-m", "django", "run_pipeline", "archive", "--older-than", "0s"]
        texts = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(
            [*command, "--lake", self._lake, *where], env=self._environment, start_new_session=True, **texts
        )

    def wait_for(self, condition):
        while self.process.poll() is None and not condition():
            time.sleep(0.02)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()

    def finish(self, *where):
        """Let it end, and run it again if it failed, which takes one sentence: then all is in the lake, once."""
        for _ in range(1 + len(STEPS)):
            out, errors = self.process.communicate()
            if self.process.returncode == 0:
                break
            said = errors.splitlines()[-1]
            assert said.startswith("CommandError: The archive failed: "), errors[-3000:]
            assert "Nothing is lost" in said
            self.start(*where)
        assert f"{ROWS:,} messages are in the lake" in out, errors[-3000:]
        assert ids_of_lake(LakeTable(self._lake)) == list(range(1, ROWS + 1))
        assert not FinishedMessage.objects.exists()


@pytest.fixture
def archive(java, environment, store, connection, tmp_path):
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"rows": ROWS})
    made = Archive(environment, tmp_path / "lake")
    yield made
    made.kill()


def is_at(step):
    return ArchiveBatch.objects.filter(state=step, is_open=True).exists()


def deletes():
    return is_at(ArchiveState.DELETING) and FinishedMessage.objects.count() < ROWS


@pytest.mark.nightly
def test_executors_and_python_workers_that_are_killed_in_each_step_change_no_count(archive):
    archive.start(*CLUSTER)
    ended = []
    for step, victims in VICTIMS.items():
        archive.wait_for(lambda step=step: is_at(step))
        ended += [killed(archive.process, what, lambda step=step: is_at(step)) for what in victims]
    archive.finish(*CLUSTER)
    assert ended.count(True) >= len(STEPS)


@pytest.mark.nightly
@pytest.mark.usefixtures("connect_port")
def test_a_driver_and_its_connect_server_that_are_killed_while_they_delete_change_no_count(archive):
    archive.start(*CONNECT)
    archive.wait_for(deletes)
    archive.kill()
    assert ArchiveBatch.objects.get().state == ArchiveState.DELETING

    archive.start(*CONNECT)
    archive.finish(*CONNECT)


@pytest.mark.nightly
@pytest.mark.usefixtures("connect_port")
@pytest.mark.parametrize("step", STEPS)
def test_python_workers_that_are_killed_over_connect_change_no_count(archive, step):
    """A server that the command starts tries each task once: the command fails, and is run again."""
    archive.start(*CONNECT)
    archive.wait_for(lambda: is_at(step))
    assert killed(archive.process, PYTHON_WORKER, lambda: is_at(step))
    archive.finish(*CONNECT)


@pytest.mark.nightly
def test_a_driver_that_is_killed_in_each_step_changes_no_count(archive):
    for condition in (*(partial(is_at, step) for step in STEPS), deletes):
        archive.start()
        archive.wait_for(condition)
        archive.kill()
    archive.start()
    archive.finish()
