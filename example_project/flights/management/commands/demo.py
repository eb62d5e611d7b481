from __future__ import annotations

import signal
import sys
from argparse import ArgumentTypeError
from math import inf
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from example_project.flights.replay import demo
from example_project.flights.replay.player import TooFast
from example_project.flights.replay.timeline import DAY
from example_project.flights.replay.workers import WorkersStopped

if TYPE_CHECKING:
    from argparse import ArgumentParser

FAULTS_SHOWN = 20
INTERRUPTED = 130


class Command(BaseCommand):
    help = "Replay a real day of departures from New York against real workers, and check every reminder."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seconds", type=duration, default=20, help="how long the day takes (default: 20)")
        parser.add_argument("--processes", type=count, default=1, help="worker processes (default: 1)")

    def handle(self, *, seconds: float, processes: int, verbosity: int, **_: Any) -> None:
        for end in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(end, signal.default_int_handler)
        try:
            call_command("migrate", interactive=False, verbosity=max(0, verbosity - 1))
            faults = demo.run(Console(), seconds=seconds, processes=processes)
        except TooFast:
            raise CommandError(f"This machine can't replay the day in {seconds:g} seconds; try more.") from None
        except WorkersStopped as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            self.stderr.write("Stopped.")
            sys.exit(INTERRUPTED)
        self._conclude(faults)

    def _conclude(self, faults: list[str]) -> None:
        if faults:
            more = [f"... and {len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
            raise CommandError("\n".join([f"{len(faults)} things are wrong:", *faults[:FAULTS_SHOWN], *more]))
        self.stdout.write(
            "Every flight that left was reminded exactly once, at its last known time.\n"
            f"To see the board: manage.py runserver, then http://localhost:8000/{DAY}/"
        )


def duration(text: str) -> float:
    if 0 < (seconds := float(text)) < inf:
        return seconds
    raise ArgumentTypeError("must be over 0")


def count(text: str) -> int:
    if (number := int(text)) > 0:
        return number
    raise ArgumentTypeError("must be over 0")
