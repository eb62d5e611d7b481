"""`run_workers` refuses what it could only fail at, and says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).parents[2]
BACKEND = "delayedq.backend.DelayedQBackend"

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.mark.parametrize("tasks", [{}, {"default": {"BACKEND": "delayedq.testing.DummyBackend"}}], ids=str)
def test_without_a_backend_of_ours_there_is_nothing_to_serve(settings, alias, tasks):
    settings.TASKS = tasks
    with pytest.raises(CommandError, match=r"No backend of TASKS is delayedq's.* Set TASKS = "):
        call_command("run_workers", "--drain")


def test_an_unknown_backend_is_refused_with_the_known_ones(settings, alias):
    settings.TASKS = {
        "default": {"BACKEND": BACKEND},
        "fast": {"BACKEND": BACKEND},
        "dummy": {"BACKEND": "delayedq.testing.DummyBackend"},
    }
    for name in ("fats", "dummy"):
        with pytest.raises(CommandError, match=f"TASKS has no backend '{name}' of delayedq; it has default, fast."):
            call_command("run_workers", "--drain", "--backend", "fast", "--backend", name)


def test_a_backend_that_cannot_be_imported_is_named(settings, alias):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backends.Nothing"}}
    with pytest.raises(CommandError, match=r"TASKS\['default'\].*delayedq.backends.Nothing"):
        call_command("run_workers", "--drain", skip_checks=True)


@pytest.mark.parametrize("verb", ["doctor", "health", "check-pending", "explain 7", "metrics"])
def test_other_commands_name_it_too(settings, alias, verb):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backends.Nothing"}}
    with pytest.raises(CommandError, match=r"TASKS\['default'\].*delayedq.backends.Nothing"):
        call_command("delayedq", *verb.split(), skip_checks=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--exclude-queues", "*"], "leaves no queue"),
        (["--queues", "a,b", "--exclude-queues", "b, a"], "none is left to serve"),
        (["--exclude-queues", ","], "name at least one queue"),
        (["--exclude-queues", "contacts|json"], "is a bare queue"),
        (["--name", ""], "is not a valid name"),
        (["--name", "a\x1b[31mb"], "is not a valid name"),
        (["--name", "x" * 101], "is not a valid name"),
        (["--processes", "0"], "is not a whole number over 0"),
        (["--lease", "nan"], "is not a number of seconds over 0"),
        (["--concurrency", "4"], r"--concurrency 4. Use --threads N, and --processes N\."),
        (["--concurrency=4"], r"Use --threads N"),
        (["-c4"], r"-c4. Use --threads N"),
        (["-Q", "mail"], r"-Q mail. Use --queues A,B\."),
        (["-c", "4"], r"Use --threads N"),
        (["-B"], r"Use nothing in its place: all workers place the ticks"),
        (["--burst"], r"Use --drain\."),
        (["--nonsense"], r"unrecognized arguments: --nonsense$"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense_are_refused(alias, flags, said):
    with pytest.raises(CommandError, match=said):
        call_command("run_workers", "--drain", *flags)


@pytest.fixture
def empty(tmp_path, environment):
    """The environment of a process on a database without tables."""
    return {**environment, "DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}


def ran(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_an_app_that_is_not_installed_is_named(environment, tmp_path):
    (tmp_path / "bare_settings.py").write_text(
        'SECRET_KEY = "x"\nINSTALLED_APPS = []\n'
        'TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}\n'
        'DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}\n'
    )
    (tmp_path / "chores.py").write_text("from delayedq import task\n\n\n@task\ndef sweep(): ...\n")
    lines = "import django; django.setup(); import chores; chores.sweep.enqueue()"
    path = f"{tmp_path}:{ROOT}"
    ended = subprocess.run(
        [sys.executable, "-c", lines],
        cwd=tmp_path,
        env={**environment, "DJANGO_SETTINGS_MODULE": "bare_settings", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert ended.stderr.strip().endswith('"delayedq" is not in INSTALLED_APPS. Add it, and run manage.py migrate.')


@pytest.mark.parametrize(
    "command",
    [["run_workers", "--drain"], ["delayedq", "pause", "mail"], ["delayedq", "prune", "--older-than", "1d"]],
    ids=" ".join,
)
def test_a_forgotten_migrate_is_named(empty, command):
    ended = ran(empty, *command)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "The database 'default' has no table delayedq_" in ended.stderr
    assert "run manage.py migrate\n" in ended.stderr


def test_without_tables_the_doctor_says_that_alone(empty):
    ended = ran(empty, "delayedq", "doctor")
    problem, cure = ended.stdout.splitlines()
    assert problem.startswith("default: Migrations are pending: delayedq.0001_initial, ")
    assert cure == "  Cure: manage.py migrate --database default"
