"""The programs of this folder that run torture, as tests call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache

from tests.missing import missing
from tests.worker.conftest import ROOT

#: Seconds: for a program, and for it to end its fleets and servers when it is interrupted.
LIMIT, GRACE = 280, 10
#: What starts a command in a namespace of its own: all processes and mounts there end with it. The shell, which is the
#: first process there, waits for those that have lost their parent.
ALONE = ["unshare", "--pid", "--mount-proc", "--kill-child", "--fork", "sh", "-c", '"$@"; exit $?', "sh"]


def holds(module, fault, *flags, as_root=False):
    """Fails unless everything held under this fault; returns what the program printed. `as_root`: whether it must be.

    Without that, the test is skipped.
    """
    if as_root and not _may_be("unshare", "--net", "--mount"):
        missing("worlds", "Only root may mount disks and make networks.")
    with started([sys.executable, "-m", module, "--faults", fault, *flags]) as ran:
        try:
            said, complained = ran.communicate(timeout=LIMIT)
        finally:
            end(ran)
    assert ran.returncode == 0, complained
    report = json.loads(said.splitlines()[-1])
    assert not report["violations"], "\n".join(report["violations"])
    assert report["times"] > 0
    assert report["messages"] > 100
    return report


def started(command):
    """In a process group of its own, and where root may do that, in a namespace."""
    alone = ALONE if _may_be(*ALONE) else []
    pipe = subprocess.PIPE
    return subprocess.Popen([*alone, *command], cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def end(running):
    """First as Ctrl+C does it, so that it ends what it has started; then for good."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


@cache
def _may_be(*prefix):
    """Whether commands may be started so, which only root may."""
    return os.getuid() == 0 and subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
