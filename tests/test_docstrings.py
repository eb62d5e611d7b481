"""What docstrings and comments of the package show and name: examples run, and what is named exists."""

from __future__ import annotations

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "delayedq"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent.name != "migrations"
}
#: `store.offers` or `store.offers.check_time`, between backquotes.
REFERENCE = re.compile(r"`((?:[a-z_]+\.)+[A-Za-z_]+)(?:\(\))?`")
#: `ChannelView`, in a docstring or a comment.
CLASS = re.compile(r"`([A-Z][a-z]+[A-Za-z]*)`")
ROOMS = {name.split(".")[1] for name in MODULES if "." in name}


@pytest.mark.parametrize("name", [name for name, text in MODULES.items() if ">>>" in text])
def test_examples_run(name):
    module = import_module(name)
    found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    said = []
    for one in tests:
        found.run(one, out=said.append)
    assert sum(len(one.examples) for one in tests) > 0
    assert not found.failures, "".join(said)


def exists(reference):
    """A module of the package or what one defines; or what the object of this name has, as `store.unschedule`."""
    room, *_, last = words = reference.split(".")
    if f"delayedq.{reference}" in MODULES:
        return True
    defined = re.compile(rf"\b(def|class|type) {last}\b|^ *{last}\b.*=|^ +{last}:|\.{last}\b", re.MULTILINE)
    of_room = [text for name, text in MODULES.items() if name.split(".")[1:2] == [room] or words[-2] in name.split(".")]
    return any(defined.search(text) for text in of_room)


def test_what_is_named_exists():
    named = [
        (name, reference)
        for name, text in MODULES.items()
        for reference in REFERENCE.findall(text)
        if reference.split(".")[0] in ROOMS and not reference.endswith(".py")
    ]
    assert len(named) > 50
    offenders = [f"{name}: {reference}" for name, reference in named if not exists(reference)]
    assert not offenders, "\n".join(offenders)


def names_in(text):
    """What a module defines, imports or uses."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def test_classes_that_are_named_exist():
    """As `ChannelView`: of the package, or one that it uses."""
    known = {name for text in MODULES.values() for name in names_in(text)}
    named = [(name, word) for name, text in MODULES.items() for word in CLASS.findall(text)]
    assert len(named) > 30
    offenders = [f"{name}: {word}" for name, word in named if word not in known]
    assert not offenders, "\n".join(offenders)
