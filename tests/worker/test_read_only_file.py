"""A worker that starts while the file of an SQLite database may not be written, and meets it again when it may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.app.chores import note
from tests.missing import missing
from tests.worker.conftest import ROOT, eventually, marked

#: What takes from a process of root the right to write what its owner may not write.
NO_RIGHTS = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--"]


@contextmanager
def read_only(path):
    files = [*path.parent.glob(f"{path.name}*")]
    for file in files:
        file.chmod(0o444)
    try:
        yield
    finally:
        for file in files:
            file.chmod(0o644)


#: Opens two connections when it may not write, as a worker has one of its loop and one of its poller; writes by one
#: when it is told, and prints what it learns from each try.
TWO_CONNECTIONS = """
import sys
import django
django.setup()
from django.db import OperationalError, connections
from delayedq.models import Message
from delayedq.store import store_for

def try_to_write():
    try:
        Message.objects.update(priority=1)
    except OperationalError as error:
        print(store_for("default").database.is_stuck(error), flush=True)

Message.objects.count()
held = connections["default"].connection
del connections["default"]
try_to_write()
sys.stdin.readline()
connections["default"].close()
try_to_write()
"""


def command(*arguments):
    """Of a process that may not write what its owner may not write."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        missing("worlds", "Root may write any file, and there is no setpriv.")
    return [*(NO_RIGHTS if os.getuid() == 0 else []), sys.executable, *arguments]


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_process_that_opened_it_by_two_connections_can_not_write_afterwards(environment, connection):
    """Not even by a new connection, while another is open. That is what a worker is replaced for."""
    note.enqueue("a")
    with ExitStack() as stack:
        with read_only(Path(connection.settings_dict["NAME"])):
            running = stack.enter_context(
                subprocess.Popen(
                    command("-c", TWO_CONNECTIONS), cwd=ROOT, env=environment,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
            stack.callback(running.kill)
            assert running.stdout.readline() == "False\n"  # nothing helps while the files are read-only
        assert running.communicate("go on\n", timeout=30)[0] == "True\n"


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_worker_works_when_the_file_may_be_written_again(environment, connection):
    """By a new process, or by the same one if it happened to close all its connections at one time."""
    note.enqueue("a")
    file = Path(connection.settings_dict["NAME"])
    with ExitStack() as stack:
        with read_only(file):
            running = subprocess.Popen(
                command("manage.py", "run_workers", "--threads", "2"),
                cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(running.terminate)
            line = "begins"
            while line and not (line.startswith("Worker") and "readonly" in line):
                line = running.stderr.readline()
        eventually(lambda: marked("a"))
        running.terminate()
        running.communicate(timeout=30)
