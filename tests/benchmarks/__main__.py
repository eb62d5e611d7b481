"""Measures delayedq, its floor and its peers.

    uv run --group test --group bench python -m tests.benchmarks [SCENARIO ...] [--messages N] [--rounds N] [--into DIR]

Prints a table; with `--into`, also writes benchmarks.json and benchmarks.png there after each scenario, and keeps the
results of earlier runs for other scenarios. Each scenario runs all contenders in turn, in several rounds: compare
numbers only within one run. A contender that fails is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

from rich.console import Console

from tests.benchmarks import alone, contest, once, volume, waiting
from tests.benchmarks.contenders import program
from tests.benchmarks.figures import Figure, table

SCENARIOS = {
    "drain": contest.drain,
    "drain-whole": contest.drain_whole,
    "drain-sqlite": contest.drain_sqlite,
    "drain-mariadb": contest.drain_mariadb,
    "enqueue": contest.enqueue,
    "enqueue-many": contest.enqueue_many,
    **once.SCENARIOS,
    **alone.SCENARIOS,
    **waiting.SCENARIOS,
    **volume.SCENARIOS,
}
PACKAGES = (
    "django", "psycopg", "pgqueuer", "oban", "awa-pg", "procrastinate", "django-ox", "dj-queue", "django-tasks-db",
    "celery", "huey",
)  # fmt: skip

console = Console(width=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    figures: dict[str, list[Figure]] = {}
    for name in options.scenarios or SCENARIOS:
        if of_this := measured(name, options.messages, options.rounds):
            figures[name] = of_this
        if options.into:
            write(figures, options.into)
    console.print(table(figure for several in figures.values() for figure in several))


def measured(name: str, messages: int, rounds: int) -> list[Figure]:
    """The figures of a scenario; empty if it can't be measured here."""
    began = time.monotonic()
    try:
        figures = [figure for figure in SCENARIOS[name](messages, rounds) if figure.rounds]
    except Exception:  # noqa: BLE001  the other scenarios are still measured
        console.print_exception(max_frames=4)
        figures = []
    console.print(f"{name} took {time.monotonic() - began:.0f} s")
    return figures


def write(figures: dict[str, list[Figure]], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "benchmarks.json"
    before = json.loads(path.read_text())["scenarios"] if path.exists() else {}
    scenarios = before | {name: [figure.as_dict() for figure in several] for name, several in figures.items()}
    scenarios = {name: scenarios[name] for name in SCENARIOS if scenarios.get(name)}
    path.write_text(json.dumps({"machine": machine(), "scenarios": scenarios}, indent=1) + "\n")
    from tests.benchmarks import chart

    known = [Figure.of(record) for several in scenarios.values() for record in several]
    if compared := [figure for figure in known if figure.unit == "/s"]:
        chart.bars(compared, directory / "benchmarks.png")


def machine() -> dict[str, object]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions | program.versions(),
    }


if __name__ == "__main__":
    main()
