"""Seconds of the pipeline for the demo's thousand messages on SQLite.

As commands, with the start of Python and Java, and in a session that runs already.

    uv run --group test --extra spark python -m tests.benchmarks.answers [--rounds 3] [--keep DIR]

The demo is played once, and its database kept in DIR if there is one; each command works on a copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import md5
from pathlib import Path
from statistics import median

MANAGE = [sys.executable, "manage.py"]
REPORT, ARCHIVE = ["report", "--output"], ["archive", "--older-than", "0s", "--lake"]


def played(directory):
    """The database after the demo, with the tables of now."""
    tables = b"".join(file.read_bytes() for file in sorted(Path("delayedq").rglob("migrations/0*.py")))
    database = directory / f"demo-{md5(tables, usedforsecurity=False).hexdigest()[:8]}.sqlite3"
    if not database.exists():
        unfinished = directory / "unfinished.sqlite3"
        unfinished.unlink(missing_ok=True)
        called(unfinished, "demo", "--seconds", "120")
        unfinished.rename(database)
    return database


def called(database, *command):
    """Seconds of a command of manage.py."""
    environment = os.environ | {"DATABASE_URL": f"sqlite:///{database}"}
    began = time.perf_counter()
    done = subprocess.run([*MANAGE, *command], env=environment, check=False, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return took


def one_round(database, directory):
    """Seconds of each command, by what it does."""
    copy, lake = directory / "copy.sqlite3", str(directory / "lake")
    shutil.copy(database, copy)
    shutil.rmtree(lake, ignore_errors=True)
    page = str(directory / "page")
    return {
        "report of the database": called(copy, "run_pipeline", *REPORT, page, "--no-lake"),
        "archive": called(copy, "run_pipeline", *ARCHIVE, lake),
        "report of the lake": called(copy, "run_pipeline", *REPORT, page, "--lake", lake),
    }


def in_a_session(database, directory, rounds):
    """Seconds of each report in this process, after the first one."""
    os.environ |= {"DATABASE_URL": f"sqlite:///{database}", "DJANGO_SETTINGS_MODULE": "example_project.settings"}
    import django

    django.setup()
    from django.core.management import call_command

    from delayedq.pipeline.spark.session import start

    spark = start()
    try:
        times = []
        for _ in range(1 + rounds):
            began = time.perf_counter()
            call_command("run_pipeline", *REPORT, str(directory / "page"), "--no-lake", stdout=sys.stderr)
            times.append(time.perf_counter() - began)
    finally:
        spark.stop()
    return times[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="Directory that keeps the demo's database; default: none.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        database = played(options.keep or directory)
        each = [one_round(database, directory) for _ in range(options.rounds)]
        for name in each[0]:
            tell(name, [times[name] for times in each])
        tell("report in a running session", in_a_session(database, directory, options.rounds))


def tell(name, times):
    rounds = ", ".join(f"{took:.1f}" for took in times)
    print(f"{name:<28} {median(times):6.1f} s (rounds: {rounds}); load {os.getloadavg()[0]:.0f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
