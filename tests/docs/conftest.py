"""A shell in an empty directory, as the reader of a page has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
