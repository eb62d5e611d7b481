"""Which worlds are visited, what they share in one session, and the line that lists them at its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.missing import missing
from tests.server import NoServer
from tests.worlds.databases import Servers
from tests.worlds.declared import WORLDS
from tests.worlds.environments import CACHE, NoWorld
from tests.worlds.environments import interpreter as interpreter_of

NAMES = [one.name for one in WORLDS]


def pytest_generate_tests(metafunc):
    if "world" in metafunc.fixturenames:
        everywhere = metafunc.config.getoption("worlds") == "all" or metafunc.config.getoption("keyword")
        visited = [one for one in WORLDS if everywhere or not one.nightly]
        metafunc.parametrize("world", visited, ids=lambda one: one.name, indirect=True, scope="module")


@pytest.fixture(scope="module")
def servers():
    started = Servers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def world(request, servers):
    """One of those that are declared, once its server runs: longer than a test, which may leave no process behind."""
    if lacking := [file for file in request.param.needs if not Path(file).exists()]:
        missing("worlds", f"{request.param.name}: {lacking}")
    try:
        servers.start(request.param.database)
    except (NoServer, NoWorld) as reason:
        missing(_kind(request.param), f"{request.param.name}: {reason}")
    return request.param


@pytest.fixture(scope="module")
def interpreter(world, testrun_uid):
    """Its Python, which may run there."""
    if world.wrapper:
        tried = subprocess.run([*world.wrapper, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            missing(_kind(world), f"{world.name}: {tried.stderr}")
    try:
        return interpreter_of(world, testrun_uid)
    except NoWorld as reason:
        missing(_kind(world), f"{world.name}: {reason}")


def _kind(world):
    return "unstable" if world.python == "3.14" or world.database.startswith("mysql") else "worlds"


def pytest_terminal_summary(terminalreporter):
    """One line about all worlds, also in a file, from which `.ci/run` has the last line that it prints."""
    reports = [one for each in ("passed", "failed", "error", "skipped") for one in terminalreporter.stats.get(each, [])]
    visited = {
        name: versions for one in reports for name, versions in getattr(one, "user_properties", []) if name in NAMES
    }
    if not any("tests/worlds/test_worlds.py" in one.nodeid for one in reports):
        return
    places = [f"{name} ({', '.join(versions.values())})" for name, versions in visited.items()]
    others = [name for name in NAMES if name not in visited]
    line = f"Worlds: {len(places)} of {len(NAMES)}: {', '.join(places)}; not visited: {', '.join(others) or 'none'}"
    terminalreporter.write_line(line)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "visited").write_text(line + "\n")
