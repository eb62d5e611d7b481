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


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_it_works_when_the_file_may_be_written_again(environment, connection):
    """What opens it meanwhile can't write afterwards, not even by another connection of the same process."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        missing("worlds", "Root may write any file, and there is no setpriv.")
    note.enqueue("a")
    command = [*(NO_RIGHTS if os.getuid() == 0 else []), sys.executable, "manage.py", "run_workers", "--threads", "2"]
    file = Path(connection.settings_dict["NAME"])
    with ExitStack() as stack:
        with read_only(file):
            running = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            stack.callback(running.terminate)
            line = "begins"
            while line and not (line.startswith("Worker") and "readonly" in line):
                line = running.stderr.readline()
        eventually(lambda: marked("a"))
        running.terminate()
        assert "is replaced" in running.communicate(timeout=30)[1]
