"""Measures delayedq beside its floor and its peers.

    uv run --group test --group bench python -m tests.benchmarks [SCENARIO ...] [--messages N] [--rounds N] [--into DIR]

Prints a table; with `--into`, writes benchmarks.json and benchmarks.png there too. Each scenario runs everybody in
turn, in several rounds: the numbers of one machine mean little, their ratios in one run a lot.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path

from rich.console import Console

from tests.benchmarks import alone, contest
from tests.benchmarks.figures import table

SCENARIOS = {
    "drain": contest.drain,
    "drain-sqlite": contest.drain_sqlite,
    "drain-mariadb": contest.drain_mariadb,
    "enqueue": contest.enqueue,
    "enqueue-many": contest.enqueue_many,
    **alone.SCENARIOS,
}
PACKAGES = (
    "django", "psycopg", "pgqueuer", "oban", "awa-pg", "procrastinate", "django-ox", "dj-queue", "django-tasks-db",
    "celery", "huey",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    figures = []
    for name in options.scenarios or SCENARIOS:
        figures += SCENARIOS[name](options.messages, options.rounds)
    Console(width=160).print(table(figures))
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
        written = {"machine": machine(), "figures": [figure.as_dict() for figure in figures]}
        (options.into / "benchmarks.json").write_text(json.dumps(written, indent=1))
        from tests.benchmarks import chart

        if compared := [figure for figure in figures if figure.unit == "/s"]:
            chart.bars(compared, options.into / "benchmarks.png")


def machine() -> dict[str, object]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": versions,
    }


if __name__ == "__main__":
    main()
