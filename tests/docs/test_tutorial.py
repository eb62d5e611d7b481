"""docs/tutorial.md from its first command to its last, in an empty directory, as a reader types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/]+\.py)( \(at the end\))?\n")


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
