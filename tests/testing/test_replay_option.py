"""`pytest --delayedq-replay`, as a project of its own runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

FILES = {
    "pytest.ini": """
        [pytest]
        DJANGO_SETTINGS_MODULE = site_settings
        pythonpath = .
        """,
    "site_settings.py": """
        SECRET_KEY = "x"
        USE_TZ = True
        INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "delayedq", "shop"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}
        """,
    "shop/__init__.py": "",
    "shop/tasks.py": """
        from django.contrib.auth.models import Group
        from delayedq import task

        @task
        def greet(name, *, polite):
            Group.objects.get(name=name)

        @task
        async def add(a, b):
            return a + b
        """,
    "tests/test_shop.py": """
        def test_that_must_not_run():
            assert False
        """,
    "tests/conftest.py": """
        import pytest

        @pytest.fixture(scope="session")
        def django_db_setup(django_db_setup, django_db_blocker):
            from django.contrib.auth.models import Group
            with django_db_blocker.unblock():
                Group.objects.create(name="crew")
        """,
}
ROW = {"id": 1, "outcome": "succeeded", "queue": "default", "attempts": 1, "max_attempts": 8}


@pytest.fixture
def project(tmp_path):
    """Writes a project and its history, and runs pytest in it; returns the exit status and what it printed."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()))

    def run(rows, *arguments, file="history.jsonl"):
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DJANGO"))}
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--delayedq-replay", file, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run


def row(task, call, **changes):
    return {**ROW, "kind": f"shop.tasks.{task}", "payload": json.dumps(call), **changes}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_month_that_ends_as_before(project, processes):
    rows = [row("add", {"args": [1, 2]}), row("greet", {"args": ["crew"], "kwargs": {"polite": True}})]
    code, said = project([*rows, row("add", {}, attempts=0)], "-v", "-n", processes)
    assert code == 0, said
    assert re.search(r"history\.jsonl::shop(\.|::)tasks\1greet", said), said
    assert "2 passed" in said
    assert "2 ended as before, 0 in another way; 0 can't be read, 1 left out." in said


def test_differences_fail_and_are_listed(project):
    rows = [
        row("add", {"args": [1, 2]}),
        row("add", {"args": [1, "2"]}, outcome="failed", attempts=8),
        row("add", {"args": [1]}, id=7),
        row("greet", {"args": ["crew"]}, id=8),
        row("gone", {"args": ["crew"]}, id=9),
        {"kind": "shop.tasks.add"},
    ]
    code, said = project(rows, "tests")
    assert code == 1, said
    for line in (
        "1 x shop.tasks.add succeeded, now failed: ArgumentsMismatch: The stored arguments do not fit shop.tasks.add:",
        "missing a required argument: 'b'.",
        "line 3: message 7, args [1], kwargs {}",
        "1 x shop.tasks.greet succeeded, now failed: ArgumentsMismatch",
        "1 x shop.tasks.gone succeeded, now failed: UnknownTask: No task is registered as 'shop.tasks.gone'.",
        "line 6: Its outcome is not one of succeeded, failed, cancelled, expired, superseded: None.",
        "2 ended as before, 3 in another way; 1 can't be read, 0 left out.",
    ):
        assert line in said, said
    assert "Traceback" not in said


def test_one_task_is_chosen_by_its_name(project):
    code, said = project([row("add", {"args": [1, 2]}), row("gone", {})], "-k", "shop.tasks.add")
    assert code == 0, said
    assert "1 passed, 1 deselected" in said


def test_a_file_that_is_not_there_is_an_error_of_usage(project):
    code, said = project([], file="nowhere.parquet")
    assert code == 4
    assert "ERROR: --delayedq-replay: there is no file nowhere.parquet." in said


def test_a_file_that_is_no_history_is_told(project):
    code, said = project([], file="shop")
    assert code == 2
    assert "shop has no Parquet files." in said


def test_pytest_django_is_needed(project):
    code, said = project([], "-p", "no:django", "-o", "addopts=")
    assert code == 4
    assert "--delayedq-replay needs pytest-django: pip install pytest-django." in said
