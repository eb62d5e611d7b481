"""`manage.py demo` as a newcomer runs it: a subprocess, real workers, a database of its own."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from delayedq.models import CronTick

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

#: Seconds for the replay of a day; if the machine is too slow, the next value is tried.
PACES = ("12", "36", "90")

type Demo = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """Starts the demo, by default on an empty SQLite database."""

    def start(*options: str, database: str = f"sqlite:///{tmp_path}/flights.sqlite3") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "manage.py", "demo", *options],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "example_project.settings",
                "DATABASE_URL": database,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def at_its_pace(replay: Callable[[str], tuple[int, str]]) -> str:
    """The output of the first demo that the machine was fast enough for; `replay` returns the exit code too."""
    for seconds in PACES:
        code, said = replay(seconds)
        if "can't replay the day" not in said:
            break
    assert code == 0, said
    return said


@pytest.mark.timeout(600)
def test_a_whole_day_is_replayed_and_each_reminder_arrives_once(demo: Demo, environment: dict[str, str]) -> None:
    def replay(seconds: str) -> tuple[int, str]:
        with demo("--seconds", seconds, database=environment["DATABASE_URL"]) as process:
            said, _ = process.communicate(timeout=180)
        return process.returncode, said

    said = at_its_pace(replay)
    rows = [line.replace("│", " ").split() for line in said.splitlines() if line.startswith("│")]
    counts = {row[0]: row[-1] for row in rows if len(row) == 2}
    assert counts == {"scheduled": "979", "moved": "774", "cancelled": "180", "delivered": "799"}
    assert [row[1] for row in rows if row[0] == "late,"] == ["p50", "p99", "max"]
    assert "Each flight that left got exactly one reminder, for its last known time." in said
    assert "60 passengers of delayed flights ask for a refund, at the desk." in said
    assert not CronTick.objects.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_an_interrupted_demo_stops_its_workers(demo: Demo, end: signal.Signals) -> None:
    with demo("--seconds", "60") as process:
        assert process.stdout
        assert "scheduled" in process.stdout.readline()
        [workers] = children_of(process.pid)
        process.send_signal(end)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Stopped." in said
    assert not Path(f"/proc/{workers}").exists()


@pytest.mark.timeout(600)
def test_a_served_demo_has_an_admin_with_a_user_workers_and_flights_to_come(demo: Demo) -> None:
    address = f"127.0.0.1:{free_port()}"

    def visit(seconds: str) -> tuple[int, str]:
        with demo("--seconds", seconds, "--serve", address) as process:
            try:
                if browser := logged_in(f"http://{address}/admin/", process):

                    def read(page: str, browser: OpenerDirector = browser) -> str:
                        return browser.open(page).read().decode()

                    forecast = browser.open(f"http://{address}/admin/delayedq/dashboard/forecast/").read().decode()
                    assert re.search(r"fall due</dt><dd>(9\d\d|1,\d{3})<", forecast)
                    assert browser.open(f"http://{address}/static/delayedq/dashboard.js").status == 200
                    flows = browser.open(f"http://{address}/admin/delayedq/flow/").read().decode()
                    assert "Close 2013-03-08" in flows
                    assert "People decide; the handler decides too, unseen" in read(
                        f"http://{address}/desk/automation/"
                    )
                    deadline = time.monotonic() + 60
                    while "nothing compared yet" in read(f"http://{address}/desk/figures/"):
                        assert time.monotonic() < deadline, "the clerk has decided nothing in 60 s"
                        time.sleep(0.2)  # the clerk decides when workers have opened the cases
            finally:
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=60)
        return process.returncode, said

    said = at_its_pace(visit)
    assert f"http://{address}/admin/, user demo, password demo" in said
    assert f"http://{address}/desk/, as clerk, reviewer, lead (the password is the name)" in said


def test_serving_the_demo_needs_debug(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "off")
    with demo("--serve") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "needs DEBUG=True" in said


def logged_in(url: str, process: subprocess.Popen[str]) -> OpenerDirector | None:
    """An HTTP client with the demo user logged in, as soon as the site answers; None if the log-in failed."""
    browser = build_opener(HTTPCookieProcessor())
    while True:
        assert process.poll() != 0
        if process.returncode:
            return None
        try:
            form = browser.open(url).read().decode()
            break
        except URLError:
            time.sleep(0.2)
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    fields = {"username": "demo", "password": "demo", "csrfmiddlewaretoken": token, "next": "/admin/"}
    assert "Site administration" in browser.open(f"{url}login/", urlencode(fields).encode()).read().decode()
    return browser


def free_port() -> int:
    """A free port below 32768: the system may give higher ones to other processes meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("No port is free.")


@pytest.mark.parametrize("options", [("--seconds", "0"), ("--seconds", "soon"), ("--processes", "0")])
def test_wrong_options_are_refused(demo: Demo, options: tuple[str, str]) -> None:
    with demo(*options) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"argument {options[0]}:" in said


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]
