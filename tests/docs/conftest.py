"""What the reader of a page has: a shell in an empty directory, and modules that hold the code of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from delayedq.tasks import registered

ROOT = Path(__file__).parents[2]


@pytest.fixture
def typed(tmp_path):
    """Runs the lines of a block in a shell; returns what they print."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "PYTEST", "DATABASE"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"

    def run(lines: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", lines],
            cwd=tmp_path,
            env=own | {"PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture
def run(alias, monkeypatch):
    """Runs code as a module of this name; its tasks are forgotten afterwards."""
    before = set(registered)

    def module(name, code, **names):
        made = ModuleType(name)
        made.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, made)
        exec(code, made.__dict__)
        return made

    yield module
    for path in set(registered) - before:
        del registered[path]
