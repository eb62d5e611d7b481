"""A program that does not end leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults import judged
from tests.missing import missing

#: Starts a process in a session of its own, which keeps the output open, and waits.
STARTS = """
import signal, subprocess
{ignored}
with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
    print("started", flush=True)
    try:
        child.wait()
    finally:
        child.kill()
"""
WELL_BEHAVED, DEAF = "", "signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.mark.parametrize("ignored", [WELL_BEHAVED, DEAF])
def test_what_a_program_has_started_ends_with_it(ignored, monkeypatch):
    if ignored and not judged._may_be(*judged.ALONE):
        missing("worlds", "Only root may make namespaces.")
    monkeypatch.setattr(judged, "GRACE", 1 if ignored else 30)
    with judged.started([sys.executable, "-c", STARTS.format(ignored=ignored)]) as running:
        assert running.stdout.readline() == "started\n"
        judged.end(running)
        assert running.communicate(timeout=30)[0] == ""


def test_a_program_that_takes_too_long_fails_its_test_and_ends(monkeypatch):
    monkeypatch.setattr(judged, "LIMIT", 0)
    with pytest.raises(subprocess.TimeoutExpired):
        judged.holds("tests.faults.postgresql_faults", "kill_server")
