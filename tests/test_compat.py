"""The tasks framework, whichever Django it is from."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import django
from django.core.checks import run_checks

from delayedq import compat
from tests.app import tasks

ROOT = Path(__file__).parent.parent


def test_the_framework_is_djangos_or_else_its_backport():
    assert compat.BUILT_IN is (django.VERSION >= (6, 0))
    package = "django.tasks" if compat.BUILT_IN else "django_tasks"
    assert compat.BaseTaskBackend.__module__ == f"{package}.backends.base"
    assert package == compat.TASKS_LOGGER


def test_all_names_are_there():
    assert [name for name in compat.__all__ if not hasattr(compat, name)] == []


def test_our_tasks_are_tasks_of_the_framework_and_can_be_pickled():
    assert isinstance(tasks.echo, compat.Task)
    assert pickle.loads(pickle.dumps(tasks.echo.using(priority=3))) == tasks.echo.using(priority=3)


OF_ANOTHER_VERSION = """
import dataclasses, os
from importlib import import_module
from delayedq import compat

package = compat.TASKS_LOGGER
of_this = compat.Task
kept = {name: value for name, value in vars(of_this).items() if callable(value) or isinstance(value, property)}
kept = {name: value for name, value in kept.items() if not name.startswith("__") or name == "__post_init__"}
needed = [each.name for each in reversed(dataclasses.fields(of_this))] + ["shard"]
other = dataclasses.make_dataclass("Task", needed, namespace=kept, frozen=True, slots=True, kw_only=True)
backends = import_module(package + ".backends.base")
for module in (compat, backends, import_module(package), import_module(package + ".base")):
    module.Task = other
backends.BaseTaskBackend.task_class = other

import django
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()
from tests.app import tasks
assert isinstance(tasks.echo, other) and tasks.echo.shard is None
assert (tasks.echo.run_after, tasks.echo.using(priority=3).priority, tasks.echo.backend) == (None, 3, "default")
"""


def test_tasks_need_no_default_of_the_frameworks_and_no_order_of_its_fields_and_take_later_ones():
    """Those of Django 6.0 have no defaults; a later version may add a field that has none."""
    code = [sys.executable, "-c", OF_ANOTHER_VERSION]
    ended = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_checks_of_backends_run(settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "OPTIONS": {"DATABASES": "x"}}}
    assert [message.id for message in run_checks() if message.id.startswith("delayedq.E")] == ["delayedq.E005"]


WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
hidden = ("django.tasks", "django_tasks")
importlib.util.find_spec = lambda name, *rest: None if name in hidden else found(name, *rest)
import delayedq.compat
"""


def test_a_missing_backport_is_named_with_its_extra():
    ended = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install 'delayedq[django52]'" in ended.stderr.splitlines()[-1]


def test_nothing_else_imports_it():
    """But for the docstrings that tell users how."""
    imports = re.compile(r"^\s*(from|import) django[._]tasks", re.MULTILINE)
    files = [path for path in (ROOT / "delayedq").rglob("*.py") if path.name != "compat.py"]
    assert [path.name for path in files if imports.search(path.read_text())] == []
