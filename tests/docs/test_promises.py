"""docs/promises.md says what each of the six promises means, and names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
ROW = re.compile(r"^\| (?!---|Promise )(.+?) \| `.+?` \| (`.+`) \|$", re.MULTILINE)
CHAPTERS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", (DOCS / "promises.md").read_text(), re.MULTILINE))


@cache
def collected(path):
    """The tests of a file that pytest finds: those at its top level."""
    if not path.is_file() or not path.name.startswith("test_"):
        return set()
    found = ast.parse(path.read_text()).body
    return {node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_reference_lists_those_promises():
    chapter = (DOCS / "reference.md").read_text().split("\n## Promises\n")[1].split("\n## ")[0]
    assert [name.rstrip(".") for name in re.findall(r"\*\*(.+?)\*\*", chapter)] == [*CHAPTERS][:-1]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_line_names_tests_that_there_are(chapter):
    rows = ROW.findall(CHAPTERS[chapter])
    assert len(rows) == CHAPTERS[chapter].count("\n| ") - 2 > 4  # no row is written so that it is not seen
    named = [test.split("::") for _, tests in rows for test in re.findall(r"`([^`]+)`", tests)]
    assert ["::".join(test) for test in named if test[-1] not in collected(TESTS / test[0])] == []
