"""What the design asks of the code as a whole: sizes, names, clocks, SQL, and a README that leaves nothing out."""

from __future__ import annotations

import argparse
import ast
import re
from dataclasses import fields
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "delayedq"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))

FORBIDDEN = {"job", "item", "manager", "util", "helper", "common"}
CLOCK = re.compile(r"\b(now|utcnow|today|time|monotonic|localtime|gmtime|perf_counter)\(\)")
SQL = re.compile(
    r"\s*(SELECT\s.+\sFROM|WITH\s.+\sAS|INSERT\sINTO|UPDATE\s.+\sSET|DELETE\sFROM|CREATE|ALTER|PRAGMA)\b", re.DOTALL
)
RAW = {"cursor", "raw", "extra", "RawSQL"}


def nodes(path):
    return ast.walk(ast.parse(path.read_text()))


def functions(path):
    return [node for node in nodes(path) if isinstance(node, FUNCTIONS)]


def length(function):
    return function.end_lineno - function.lineno + 1


# Sizes


@EACH_FILE
def test_no_file_is_longer_than_350_lines(path):
    assert len(path.read_text().splitlines()) <= 350


@EACH_FILE
def test_no_function_is_longer_than_50_lines(path):
    assert [function.name for function in functions(path) if length(function) > 50] == []


def test_half_of_all_functions_have_at_most_8_lines():
    assert median(length(function) for path in FILES for function in functions(path)) <= 8


# Names


def defined_names(path):
    """What the file names itself: modules, classes, functions, arguments, variables and attributes."""
    yield path.stem
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(name):
    """Those of a_name or AName, in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@EACH_FILE
def test_names_are_of_the_vocabulary(path):
    names = set(defined_names(path))

    assert {name for name in names if words(name) & FORBIDDEN} == set()
    assert {name for name in names if name.startswith(("handle_", "_handle_"))} == set()


# Boundaries


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=lambda path: path.name)
def test_the_core_reads_no_clock(path):
    assert CLOCK.findall(path.read_text()) == []


def texts(path):
    """The strings of a file, but for docstrings and other strings that stand alone."""
    tree = list(nodes(path))
    alone = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    return [n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in alone]


@EACH_FILE
def test_raw_sql_is_only_in_the_store(path):
    """Executors can't import the store: the statements of the pipeline stand in modules of their own."""
    if path.is_relative_to(PACKAGE / "store") or path.is_relative_to(PACKAGE / "migrations"):
        return
    if path.is_relative_to(PACKAGE / "spark") and (path.stem.endswith("_sql") or path.stem == "connecting"):
        return
    assert [text for text in texts(path) if SQL.match(text)] == []
    calls = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
    assert {getattr(call, "attr", getattr(call, "id", "")) for call in calls} & RAW == set()


@EACH_FILE
def test_the_pipeline_asks_spark_for_nothing_that_spark_connect_lacks(path):
    attributes = {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}
    assert attributes & {"sparkContext", "rdd", "_sc", "_jvm", "_jsc", "_jdf", "_jsparkSession"} == set()


# The README


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text()


def test_the_readme_names_every_flag_of_run_workers(readme):
    from delayedq.management.commands.run_workers import Command

    parser = argparse.ArgumentParser(add_help=False)
    Command().add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert flags
    assert [flag for flag in flags if f"`{flag}" not in readme] == []


def test_the_readme_names_every_setting(readme):
    from delayedq.conf import Settings

    assert [field.name for field in fields(Settings) if f"`{field.name}" not in readme] == []


@pytest.mark.parametrize("command", ["uv run manage.py demo", "uv run --group test pytest"])
def test_the_readme_gives_the_commands_that_work_on_a_fresh_clone(readme, command):
    assert re.search(rf"^\s*(\$ )?{re.escape(command)}(\s+#.*)?$", readme, re.MULTILINE)


def test_ci_runs_the_test_command_of_the_readme():
    assert "\nuv run --group test pytest\n" in (ROOT / ".ci" / "run").read_text()
