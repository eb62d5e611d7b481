"""The programs of this folder that run torture, as tests call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.missing import missing
from tests.worker.conftest import ROOT


def holds(module, fault, *flags, as_root=False):
    """Fails unless everything held under this fault; returns what the program printed. `as_root`: whether it must be.

    Without that, the test is skipped.
    """
    if as_root and (
        os.getuid() != 0 or subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode
    ):
        missing("worlds", "Only root may mount disks and make networks.")
    command = [sys.executable, "-m", module, "--faults", fault, *flags]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert not report["violations"], "\n".join(report["violations"])
    assert report["times"] > 0
    assert report["messages"] > 100
    return report
