"""One traveller: makes a project as its user would, drives it by `manage.py`, and judges what came of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worlds.declared import World

APP = Path(__file__).parent / "journey"
#: Seconds for each command.
PATIENCE = 90
#: Seconds in which workers stop that have nothing to do.
STOP = 10
#: What a process inherits of the tests would not be there in a project.
OURS = ("DJANGO", "PYTEST", "DATABASE", "DELAYEDQ", "COVERAGE", "PYTHON", "VIRTUAL_ENV", "UV_")
SETTINGS = """
INSTALLED_APPS += ["delayedq", "journey"]
TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["default", "moved"]}}
DELAYEDQ = {"CRON": {"tick": {"task": "journey.tasks.tick", "cron": "* * * * * *"}}}
"""
URLS = """
from journey.views import send
urlpatterns += [path("send/<int:number>/", send)]
"""
#: The lines in a log of workers that run these tasks, some of which fail, and nothing else happens.
SAID = (
    r"delayedq: 2 process\(es\) of 4 thread\(s\) serve all queues\.",
    r"\d\d:\d\d:\d\d (succeeded|in [\d.]+ m?s|failed) +journey\.tasks\..*",
    r"journey\.tasks\.(retried|once|failing) .*",
    r"Traceback \(most recent call last\):|  .*|RuntimeError: .*|",
)
#: What the checks of a command add where they warn.
WARNED = (r"System check identified some issues:|WARNINGS:|\?: \(delayedq\.W.*|\tHINT: .*",)
IDENTIFIER = re.compile(r"\((\w+\.[EW]\d+)\)")


class Traveller:
    """In a folder of its own, with the interpreter of the world."""

    def __init__(self, world: World, folder: Path, python: Path, settings: str) -> None:
        self.world, self.folder, self.python = world, folder, python
        self.log = folder / "log"
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | {
            "PYTHONWARNINGS": "default",
            **world.environment,
        }
        self._make_project(settings)

    def _make_project(self, settings: str) -> None:
        self._run(str(self.python), "-m", "django", "startproject", "country", ".")
        shutil.copytree(APP, self.folder / "journey", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in (
            ("settings.py", SETTINGS + settings + self.world.settings),
            ("urls.py", URLS),
        ):
            with (self.folder / "country" / name).open("a") as file:
                file.write(text)

    def manage(self, *arguments: str, confined: bool = True) -> str:
        """What the command prints; it must succeed. Where it is not confined, the wrapper of the world is left out."""
        return self._run(*self._command(*arguments, confined=confined))

    def check(self) -> set[str]:
        """The ids of what the checks say."""
        return set(IDENTIFIER.findall(self.manage("check", "--database", "default")))

    def judge(self) -> dict[str, str]:
        """Raises unless each message has its outcome and its effects. Returns on what versions the project runs."""
        return json.loads(self.manage("judge").splitlines()[-1])

    @contextmanager
    def workers(self) -> Iterator[None]:
        """Two worker processes, which get SIGTERM at the end of the block, and must stop well."""
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                self._command("run_workers", "--processes", "2"),
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield
                assert process.poll() is None, f"run_workers ended by itself with {process.returncode}"
                began = time.monotonic()
                self._stop(process)
                assert process.wait(PATIENCE) == 0, f"run_workers ended with {process.returncode}"
                assert time.monotonic() - began < STOP, "run_workers had nothing to do, and did not stop"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def unexpected(self) -> list[str]:
        """Lines of the log that nobody expects in this world."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        warned = WARNED if self.world.warned else ()
        said = [re.compile(one) for one in (*SAID, *warned, *self.world.logged)]
        return [line for line in lines if not any(one.fullmatch(line) for one in said)]

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """As a process manager does, which knows the id of the command itself."""
        pid = process.pid
        if "--fork" in self.world.wrapper:
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        os.kill(pid, signal.SIGTERM)

    def _command(self, *arguments: str, confined: bool = True) -> list[str]:
        wrapper = self.world.wrapper if confined else ()
        return [*wrapper, str(self.python), *self.world.flags, "manage.py", *arguments]

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout
