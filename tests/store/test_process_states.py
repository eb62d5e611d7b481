"""Whether a process lives, by its id."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import SimpleNamespace

import pytest

from delayedq.store import processes
from tests.worker.conftest import eventually

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_process_is_known_by_its_start_too(asleep):
    found = processes.find(asleep)
    assert found == processes.find(asleep)
    assert not found.stopped
    assert found.started_at >= processes.find(os.getpid()).started_at


@ON_LINUX
def test_a_zombie_is_dead_and_a_stopped_process_is_not(asleep):
    os.kill(asleep, signal.SIGSTOP)
    eventually(lambda: processes.find(asleep).stopped)
    os.kill(asleep, signal.SIGKILL)
    eventually(lambda: processes.find(asleep) is None)


def test_an_id_that_nobody_has_is_no_process():
    assert processes.find(2**22 + 1) is None
    assert not processes.lives(f"{socket.gethostname()}:{2**22 + 1}")


def test_without_proc_the_id_alone_is_known(asleep, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert processes.find(asleep) == processes.Process(0, stopped=False)
    assert processes.find(2**22 + 1) is None

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(processes, "os", SimpleNamespace(kill=refuse))
    assert processes.find(asleep) == processes.Process(0, stopped=False)
