"""Torture under one fault that a test makes: what the programs of this folder that start servers have in common.

Each of them has a table of faults, and a function that makes one while `tortured` runs. It prints a line of JSON for
each: what was violated, in how many seconds 95 % of the usual rate were back, how many offers were refused, and how
many messages ended twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import django
from django.core.management import call_command, execute_from_command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from delayedq.torture.audit import Event
    from tests.proxy import Proxy

#: Seconds: of more than a lease of `delayedq.torture.run`; and for which a server may be starting.
LONG, STARTUP = 4.0, 60.0
#: A disk that can be filled.
DISK = "400m"
CHILDREN = {"DJANGO_SETTINGS_MODULE": "tests.worker_settings", "ANSWER_WITHIN": "1"}


class Load(NamedTuple):
    """How long things are disturbed (seconds), the messages a second, the seed, and the last two of `torture.run.Plan`:
    where the processes run, and which lines of the audit are judged.
    """

    seconds: float
    rate: int
    seed: int
    prefix: Callable[[str], Sequence[str]] = lambda _: ()
    judged: Callable[[Sequence[Event]], Sequence[Event]] = lambda events: events


def until(condition: Callable[[], object], seconds: float = STARTUP) -> None:
    """Wait until it holds. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Not within {seconds:.0f} s: {condition}")
        time.sleep(0.1)


@contextmanager
def small_disk(size: str = DISK) -> Iterator[Path]:
    """A directory on a disk of its own; this needs root."""
    with tempfile.TemporaryDirectory(prefix="delayedq-disk-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


def fill(disk: Path) -> Path:
    """The file that leaves no byte free on this disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return filler


class OnTheWay:
    """The faults of what lies between workers and their server. `_proxy`: through which they reach it."""

    _proxy: Proxy

    def stall(self) -> None:
        """No byte passes for longer than a lease, in both directions, and nothing is closed."""
        self._proxy.hold()
        time.sleep(LONG)
        self._proxy.go_on()

    def half_open(self) -> None:
        """What the server says does not arrive, and what it is told does."""
        self._proxy.hold("down")
        time.sleep(LONG)
        self._proxy.go_on()

    def forget_connections(self) -> None:
        """What is open is never answered again; new ones are."""
        self._proxy.forget()
        time.sleep(LONG)


ON_THE_WAY = [name for name in vars(OnTheWay) if not name.startswith("_")]
#: In these, workers may not hear of what they have claimed.
SILENT = {*ON_THE_WAY, "part"}


def tortured(fault: str, disturb: Callable[[], None] | None, load: Load) -> dict[str, object]:
    """Run torture on the database in DATABASE_URL with this fault alone, and say what came of it.

    disturb: returns when all is as before; None for a fault that `delayedq torture` has of its own.
    """
    django.setup()
    from django.db import connections

    from delayedq.store import store_for
    from delayedq.store.connecting import use_worker_connections
    from delayedq.torture.audit import BACKEND, read, write
    from delayedq.torture.faults import faults_of
    from delayedq.torture.run import Plan, torture

    def disturbed(scene: Any) -> None:
        if disturb is None:
            faults_of(scene.store)[fault](scene)
        else:
            if fault in SILENT:
                for pid in (pid for fleet in scene.fleets for pid in scene.workers_of(fleet)):
                    write("unanswered", pid=pid)
            disturb()
        connections["default"].close()  # which the fault may have ended

    use_worker_connections()
    call_command("migrate", run_syncdb=True, verbosity=0)
    os.environ[BACKEND] = "default"
    plan = Plan("default", load.seed, load.seconds, load.rate, {fault: disturbed}, load.prefix, load.judged)
    with tempfile.TemporaryDirectory(prefix="delayedq-audit-") as folder:
        report = torture(store_for("default"), plan, Path(folder))
        refused = sum(event.what == "refused" for event in read(Path(folder)))
    return {
        "fault": fault,
        "times": report.faults[fault],
        "messages": report.messages,
        "ended_twice": report.ended_twice,
        "recovered": report.recovered.get(fault),
        "refused": refused,
        "violations": ["\n".join([f"{one.invariant}: {one.text}", *map(str, one.lines)]) for one in report.violations],
    }


def main(
    module: str, about: str | None, faults: Sequence[str], judged: Callable[[str, Load], dict[str, object]]
) -> None:
    """The command line of such a program. Settings are read once in a process, so each fault has its own."""
    if sys.argv[1:2] == ["delayedq"]:  # one of the processes of a run
        execute_from_command_line(sys.argv)
        return
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("--faults", default=",".join(faults))
    arguments.add_argument("--seconds", type=float, default=4)
    arguments.add_argument("--rate", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=7)
    given = arguments.parse_args()
    names = given.faults.split(",")
    os.environ |= CHILDREN
    if len(names) == 1:
        said = judged(names[0], Load(given.seconds, given.rate, given.seed))
        sys.stdout.write(f"{json.dumps(said)}\n")
        return
    more = ["--seconds", str(given.seconds), "--rate", str(given.rate), "--seed", str(given.seed)]
    for name in names:
        subprocess.run([sys.executable, "-m", module, "--faults", name, *more], check=True)
