"""docs/promises.md and docs/architecture.md name code and tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "architecture.md").read_text()
PROMISED = (ROOT / "docs" / "promises.md").read_text()
CODE, TESTS = ROOT / "delayedq", ROOT / "tests"
NAME = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
PROMISES = {
    promise: (NAME.findall(code), NAME.findall(tests))
    for promise, code, tests in re.findall(r"^\| (.+?) \| (`.+?`) \| (`.+`) \|$", PROMISED, re.MULTILINE)
}
#: What the page must answer, by words of its rows.
ASKED = [
    "stale result",
    "paused queue",
    "replaced while it runs",
    "at most 5 %",
    "tick is placed at most once",
    "DST rule",
    "Undo",
    "archive deletes only",
    "MAX_PAYLOAD_BYTES",
    "Poison",
    "RETENTION",
    "notified after the commit",
]


@cache
def defined(path):
    """Functions, classes, their methods as `Class.method`, and constants; empty if there is no such file."""
    return set(names(ast.parse(path.read_text()).body)) if path.is_file() else set()


def names(body, within=""):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name
        if isinstance(node, ast.ClassDef):
            yield from names(node.body, f"{within}{node.name}.")
        for target in getattr(node, "targets", []):
            yield from (within + name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def unknown(named, folder):
    return [f"{path}::{name}" for path, name in named if name not in defined(folder / path)]


@pytest.mark.parametrize("words", ASKED)
def test_the_map_answers(words):
    assert len([promise for promise in PROMISES if words in promise]) == 1


def test_each_promise_has_code_that_exists():
    assert {promise: code for promise, (code, _) in PROMISES.items() if not code or unknown(code, CODE)} == {}


def test_each_promise_has_a_test_that_exists():
    assert {promise: tests for promise, (_, tests) in PROMISES.items() if not tests or unknown(tests, TESTS)} == {}
    assert {name for _, tests in PROMISES.values() for _, name in tests if not name.startswith("test_")} == set()


def test_whatever_else_the_map_names_exists():
    folders = re.findall(r"`(\w+/)`", MAP)

    assert NAME.findall(MAP)
    assert unknown(NAME.findall(MAP), CODE) == []
    assert [name for name in folders if not list(CODE.glob(f"**/{name}")) and not (ROOT / name).is_dir()] == []
