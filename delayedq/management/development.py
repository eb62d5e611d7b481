"""While developing: workers that start anew when code changes, and the site and its workers in one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.autoreload import StatReloader, get_child_arguments

from delayedq.management.arguments import positive
from delayedq.worker.child import STOP_SIGNALS

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence
    from os import PathLike
    from types import FrameType

    from django.core.management.base import OutputWrapper


class SourceReloader(StatReloader):
    """The first file that changed: a module that is loaded here, or one in the folder of an app of the project."""

    changed: Path | None = None

    def __init__(self) -> None:
        super().__init__()
        for config in apps.get_app_configs():
            if "site-packages" not in config.path:
                self.watch_dir(config.path, "**/*.py")
        self._looks = self.tick()

    def look(self) -> Path | None:
        """Look, and rest a second."""
        self.changed = None
        next(self._looks)
        return self.changed

    def notify_file_changed(self, path: str | PathLike[str]) -> None:
        self.changed = self.changed or Path(path)


class Together:
    """Processes that end together: when one of them ends by itself, or at a signal. A second signal kills them."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._running: list[subprocess.Popen[bytes]] = []
        self.stopping = False
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def start(self) -> None:
        self._running = [self._started(command) for command in self._commands]

    def end(self) -> int:
        """End all, which may take their own shutdown timeout; returns the first exit code that is not 0."""
        if not self.stopping:  # a second signal would kill them
            self._signal(signal.SIGTERM)
        codes = [one.wait() for one in self._running]
        return next(filter(None, codes), 0)

    def codes(self) -> list[int | None]:
        """Of those that run: None."""
        return [one.poll() for one in self._running]

    @staticmethod
    def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Workers get a process group: Ctrl-C reaches a whole group, and what we pass on would be the second signal."""
        group = 0 if "run_workers" in command else None
        return subprocess.Popen(command, process_group=group)  # noqa: S603 - our own commands

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            if self.stopping:  # shell and kernel may both send it
                return
            number = signal.SIGTERM  # the site does not end by the other
        self._signal(signal.SIGKILL if self.stopping else number)
        self.stopping = True

    def _signal(self, number: int) -> None:
        for one in self._running:
            if one.poll() is None:
                one.send_signal(number)


def add_reload(parser: ArgumentParser) -> None:
    parser.add_argument("--reload", action="store_true", help="For development: restart when code changes.")
    parser.add_argument(
        "--parent",
        type=positive,
        metavar="PID",
        help="Stop when the process that started this one, with this id, is gone.",
    )


def run_reloading(out: OutputWrapper, parent: int | None) -> int:
    """Run the same without --reload, anew after each change; what fails waits for the next change.

    The workers end if this process is killed, and all of them if that with the pid `parent` is.
    """
    words = [*(word for word in get_child_arguments() if word != "--reload"), "--lines", *_owned()]
    workers, changes = Together([[*map(str, words)]]), SourceReloader()
    workers.start()
    while not workers.stopping and parent in {None, os.getppid()}:
        path = changes.look()
        if path is not None:
            out.write(f"{path.name} has changed: the workers start anew.")
            out.flush()  # a pipe would keep it until the end
            workers.end()
            workers.start()
        elif workers.codes() == [0]:
            break
    return workers.end()


def _owned() -> list[str]:
    """Flags of workers that end with this process, however it ends. The last ones hold."""
    return ["--parent", str(os.getpid())]


def own_django() -> list[str]:
    """How this process was started, without the command of Django and its arguments."""
    started = list(map(str, get_child_arguments()))
    return started[: len(started) - len(sys.argv[1:])]


def add_dev(parser: ArgumentParser) -> None:
    parser.add_argument(
        "address", nargs="?", metavar="[ADDRESS:]PORT", help="Address of the site, as for runserver (8000)."
    )
    parser.add_argument("--workers", default="", metavar="FLAGS", help="For run_workers: '--threads 2 --queues mail'.")


def run_dev(options: dict[str, Any]) -> None:
    """The site and its workers, until one of them ends, or Ctrl-C."""
    django = own_django()
    site = [*django, "runserver", *filter(None, [options["address"]])]
    both = Together([site, [*django, "run_workers", "--reload", *_owned(), *options["workers"].split()]])
    both.start()
    while not both.stopping and both.codes() == [None, None]:
        time.sleep(0.2)
    sys.exit(both.end())
