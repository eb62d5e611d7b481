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
