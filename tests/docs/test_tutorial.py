"""docs/tutorial.md from its first command to its last, in an empty directory, as a reader types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/]+\.py)( \(at the end\))?\n")


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


def test_the_tutorial_works_from_its_first_command_to_its_last(tmp_path, typed):
    printed = ""
    for language, text in BLOCK.findall(PAGE.read_text()):
        if language == "sh":
            printed += typed(text)
            continue
        named = FILE.match(text)
        assert named, f"A file of the tutorial has no name:\n{text}"
        with (tmp_path / named[1]).open("a" if named[2] else "w") as file:
            file.write(f"\n{text}" if named[2] else text)
    for said in ("System check identified no issues", "To: ann@example.com", "Ran 2 tests", "appointment-2"):
        assert said in printed
    assert "bob@example.com" not in printed
