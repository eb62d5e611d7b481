"""Whether a process lives, by its id."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import SimpleNamespace

import pytest

from delayedq.store.sqlite import database
from tests.worker.conftest import eventually

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_process_is_known_by_its_start_too(asleep):
    found = database.find(asleep)
    assert found == database.find(asleep)
    assert not found.stopped
    assert found.started_at >= database.find(os.getpid()).started_at


@ON_LINUX
def test_a_zombie_is_dead_and_a_stopped_process_is_not(asleep):
    os.kill(asleep, signal.SIGSTOP)
    eventually(lambda: database.find(asleep).stopped)
    os.kill(asleep, signal.SIGKILL)
    eventually(lambda: database.find(asleep) is None)


def test_an_id_that_nobody_has_is_no_process():
    assert database.find(2**22 + 1) is None
    assert not database.lives(f"{socket.gethostname()}:{2**22 + 1}")


def test_without_proc_the_id_alone_is_known(asleep, monkeypatch, tmp_path):
    monkeypatch.setattr(database, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert database.find(asleep) == database.Process(0, stopped=False)
    assert database.find(2**22 + 1) is None

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(database, "os", SimpleNamespace(kill=refuse))
    assert database.find(asleep) == database.Process(0, stopped=False)
