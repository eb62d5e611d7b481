from __future__ import annotations

import signal
import sys
from argparse import ArgumentTypeError
from math import inf
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from example_project.flights.closing import close_day
from example_project.flights.replay import cases, demo
from example_project.flights.replay import serve as after
from example_project.flights.replay.player import TooFast
from example_project.flights.replay.timeline import DAY, read_record
from example_project.flights.replay.workers import WorkersStopped

if TYPE_CHECKING:
    from argparse import ArgumentParser

ADDRESS = "127.0.0.1:8000"
FAULTS_SHOWN = 20
INTERRUPTED = 130


class Command(BaseCommand):
    help = "Replay a real day of departures from New York against real workers, and check every reminder."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seconds", type=duration, default=20, help="how long the day takes (default: 20)")
        parser.add_argument("--processes", type=count, default=1, help="worker processes (default: 1)")
        parser.add_argument(
            "--serve",
            metavar="ADDRESS",
            nargs="?",
            const=ADDRESS,
            help=f"then serve the site and its admin, with workers and flights to come (default: {ADDRESS})",
        )

    def handle(self, *, seconds: float, processes: int, serve: str | None, verbosity: int, **_: Any) -> None:
        if serve and not settings.DEBUG:
            raise CommandError("--serve creates a user with a public password, so it needs DEBUG=True.")
        for end in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(end, signal.default_int_handler)
        try:
            call_command("migrate", interactive=False, verbosity=max(0, verbosity - 1))
            self._conclude(demo.run(Console(), seconds=seconds, processes=processes))
            self.stdout.write(f"{cases.ask()} passengers of delayed flights ask for a refund, at the desk.")
            if serve:
                self._serve(serve, processes)
        except TooFast:
            raise CommandError(
                f"This machine can't replay the day in {seconds:g} seconds; use a larger --seconds."
            ) from None
        except WorkersStopped as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            self.stderr.write("Stopped.")
            sys.exit(INTERRUPTED)
        if not serve:
            self.stdout.write(f"To see the board: manage.py runserver, then http://localhost:8000/{DAY}/")

    def _serve(self, address: str, processes: int) -> None:
        after.welcome()
        after.announce(read_record())
        host = address if ":" in address else f"127.0.0.1:{address}"
        self.stdout.write(
            f"The board: http://{host}/{DAY}/\n"
            f"The admin: http://{host}/admin/, user {after.USER}, password {after.PASSWORD}\n"
            f"The desk: http://{host}/desk/, as {', '.join(cases.USERS)} (the password is the name)\n"
            f"The flow that closes the day: http://{host}/admin/delayedq/flow/{close_day(DAY).id}/change/"
        )
        after.serve(address, processes=processes)

    def _conclude(self, faults: list[str]) -> None:
        if faults:
            more = [f"... and {len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
            raise CommandError("\n".join([f"{len(faults)} faults:", *faults[:FAULTS_SHOWN], *more]))
        self.stdout.write("Each flight that left got exactly one reminder, for its last known time.")


def duration(text: str) -> float:
    if 0 < (seconds := float(text)) < inf:
        return seconds
    raise ArgumentTypeError("must be over 0")


def count(text: str) -> int:
    if (number := int(text)) > 0:
        return number
    raise ArgumentTypeError("must be over 0")
