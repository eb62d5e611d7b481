"""Torture while a PostgreSQL server, its disk or the way to it fails: nothing is lost, nothing overlaps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.faults.postgresql_faults import FAULTS, ON_A_DISK
from tests.missing import missing
from tests.worker.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", FAULTS)
def test_everything_holds_under_each_fault_of_the_server(fault, postgresql):
    if fault in ON_A_DISK and os.getuid() != 0:
        missing("worlds", "Only root may mount a small disk.")
    command = [sys.executable, "-m", "tests.faults.postgresql_faults", "--faults", fault]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert report["violations"] == []
    assert report["times"] > 0
    assert report["messages"] > 100
