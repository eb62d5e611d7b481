"""SCENARIOS.md leaves no scenario out, and names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| .+ \| (.+) \|$", re.MULTILINE)
NAMED = dict(ROW.findall((TESTS / "SCENARIOS.md").read_text()))
COUNTS = {"A": 15, "B": 20, "C": 11, "K": 14, "E": 15, "J": 8, "D": 32}


@cache
def defined(path):
    return {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_no_scenario_is_left_out():
    assert set(NAMED) == {f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)}


@pytest.mark.parametrize("scenario", NAMED)
def test_each_scenario_has_tests(scenario):
    named = [test.split("::") for test in re.findall(r"`([^`]+)`", NAMED[scenario])]
    assert named
    assert [f"{path}::{name}" for path, name in named if name not in defined(path)] == []
