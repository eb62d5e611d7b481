"""How pytest runs: in how many processes, as `addopts` asks xdist for `auto`, and how fast the tests start others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import DEFAULT, LEFT_OUT, is_default, pytest_collection_modifyitems, scope_of
from tests.conftest import pytest_xdist_auto_num_workers as processes_for

FILE = str(Path(__file__))
FOLDER = str(Path(__file__).parent)
#: Django was imported by pytest before `pytest_configure`; this process compiles it if need be, and asks another.
ASK = """
import subprocess, sys
import django.db.models
sys.exit(subprocess.call([sys.executable, "-c", "import django, os; print(os.path.exists(django.__cached__))"]))
"""


@pytest.mark.parametrize("args", [[FILE], [f"{FILE}::test_a"], [f"{FILE}::test_a[b::c]"], [FILE, __file__]])
def test_files_and_single_tests_run_in_one_process(args):
    assert processes_for(SimpleNamespace(args=args)) == 0


@pytest.mark.parametrize("args", [[FOLDER], [FOLDER, FILE]])
def test_folders_run_in_one_process_more_than_there_are_processors(args):
    assert processes_for(SimpleNamespace(args=args)) == os.cpu_count() + 1


def test_the_whole_suite_is_a_folder(pytestconfig):
    """Without arguments pytest runs what `testpaths` names."""
    names = pytestconfig.getini("testpaths")

    assert names
    assert processes_for(SimpleNamespace(args=[str(pytestconfig.rootpath / name) for name in names])) > 1


def test_files_that_share_a_spark_run_in_one_process_and_others_each_in_any():
    sharing = ["tests/pipeline/test_failures.py", "tests/pipeline/commands/test_archive.py"]
    others = ["tests/pipeline/test_archive_elsewhere.py", "tests/queue/test_poll.py"]

    assert {scope_of(file) for file in sharing} == {"spark"}
    assert [scope_of(file) for file in others] == others


@pytest.mark.parametrize(
    ("source", "marks", "is_quick"), [("TESTPATHS", "", True), ("TESTPATHS", "slow", False), ("ARGS", "", False)]
)
def test_slow_tests_are_left_out_unless_something_is_named(source, marks, is_quick):
    given = SimpleNamespace(args_source=pytest.Config.ArgsSource[source], option=SimpleNamespace(markexpr=marks))
    assert is_default(given) == is_quick


def test_ci_runs_what_is_left_out():
    """The runs complement each other: every test in one of them, none in two."""
    night, *others = LEFT_OUT

    assert f"not ({' or '.join(LEFT_OUT)})" == DEFAULT
    assert f'pytest -m "not {night} and ({" or ".join(others)})"' in Path(".ci/run").read_text()
    assert f"pytest -m {night}" in Path(".ci/nightly").read_text()


def test_what_waits_for_the_night_on_mariadb_is_slow_and_was_seen_elsewhere():
    databases = ("sqlite", "mariadb")
    tests = [_test(f"test_a[{one}]", one, "slow") for one in databases] + [
        _test(f"test_b[{one}]", one) for one in databases
    ]
    alone = _test("test_c[mariadb]", "mariadb", "slow")

    pytest_collection_modifyitems([*tests, alone])

    assert [one.nodeid for one in [*tests, alone] if "nightly" in one.marks] == ["test_a[mariadb]"]


def _test(nodeid, database, *marks):
    """What `pytest_collection_modifyitems` asks of a test."""
    marks = set(marks)
    test = SimpleNamespace(nodeid=nodeid, path=Path(__file__), fixturenames=["alias"], marks=marks)
    test.callspec = SimpleNamespace(params={"alias": database})
    test.add_marker, test.get_closest_marker = marks.add, {name: name for name in marks}.get
    return test


def test_a_process_that_a_test_starts_finds_what_it_imports_compiled():
    """Also where Python was told to write no bytecode."""
    started = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)

    assert started.stdout == "True\n"
