"""Without an optional library, or with too old a part: one line that names the cure, and no traceback.

A process of its own can't import the library, as if it were not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from delayedq.conf import ExtraMissing
from delayedq.extras import told
from delayedq.store import requirements, store_for
from tests.test_checks import messages

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
#: `manage.py` where some packages are not installed.
WITHOUT = """
import sys
from importlib import metadata

hidden, *arguments = sys.argv[1:]
hidden = set(hidden.split())


class Unknown(metadata.DistributionFinder):
    def find_spec(self, *_):
        return None

    def find_distributions(self, context):
        if context.name and context.name.replace("-", "_") in hidden:
            raise metadata.PackageNotFoundError(context.name)
        return []


sys.meta_path.insert(0, Unknown())
sys.modules |= dict.fromkeys(hidden)
from django.core.management import execute_from_command_line

execute_from_command_line(["manage.py", *arguments])
"""
ON_POSTGRESQL = "DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'x', 'HOST': '/nowhere'}}"
QUEUE_ON_MYSQL = """
DATABASES["queue"] = {"ENGINE": "django.db.backends.mysql", "NAME": "x"}
TASKS["default"]["OPTIONS"] = {"DATABASE": "queue"}
"""
WITH_METRICS = "ROOT_URLCONF = 'metrics_urls'"
URLS = """
import delayedq.metrics
from django.urls import path

urlpatterns = [path("metrics", delayedq.metrics.view)]
"""
TRACED = "DELAYEDQ = {'METADATA_FROM': ['delayedq.tracing.made']}"


def ran(tmp_path, hidden, settings, *arguments):
    """The exit code of the command, and the lines of its stderr."""
    here = f"from tests.settings import *\nDATABASES['default']['NAME'] = {str(tmp_path / 'db.sqlite3')!r}\n"
    (tmp_path / "chosen_settings.py").write_text(here + settings)
    (tmp_path / "metrics_urls.py").write_text(URLS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    given = {**os.environ, "DJANGO_SETTINGS_MODULE": "chosen_settings", "PYTHONPATH": path}
    code = [sys.executable, "-c", WITHOUT, hidden, *arguments]
    ended = subprocess.run(code, env=given, cwd=tmp_path, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("hidden", "settings", "command", "said", "extra"),
    [
        ("psycopg", ON_POSTGRESQL, "check", "E009) DATABASES['default']: delayedq needs psycopg 3.2", "postgres"),
        ("psycopg", ON_POSTGRESQL, "migrate", "E009) DATABASES['default']: delayedq needs psycopg 3.2", "postgres"),
        ("psycopg", ON_POSTGRESQL, "run_workers --skip-checks", "CommandError: DATABASES['default']", "postgres"),
        ("MySQLdb", QUEUE_ON_MYSQL, "run_workers --drain", "Error loading MySQLdb module", "mysql"),
        ("prometheus_client", WITH_METRICS, "check", "E009) Metrics need prometheus-client", "prometheus"),
        ("prometheus_client", "", "delayedq metrics", "CommandError: Metrics need prometheus-client", "prometheus"),
        ("opentelemetry opentelemetry_api", TRACED, "check", "E009) DELAYEDQ['METADATA_FROM']: Traces need", "otel"),
        ("pyarrow", "", "run_pipeline status", "CommandError: pyarrow is missing", "spark"),
    ],
)
def test_without_it_one_line_names_the_extra(tmp_path, hidden, settings, command, said, extra):
    code, lines = ran(tmp_path, hidden, settings, *command.split())

    (line,) = [one for one in lines if said in one]
    assert line.endswith(f"pip install 'delayedq[{extra}]'.")
    assert (code, "Traceback (most recent call last):" in lines) == (1, False)


def test_a_library_that_lacks_a_name_is_told_with_its_version():
    said = told(ImportError("cannot import name 'Action' from 'django' (x).", name="django.db"), "lake")
    assert said.startswith("django ")
    assert said.endswith("does not fit (cannot import name 'Action' from 'django' (x)): pip install 'delayedq[lake]'.")


# Too old


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_too_old_a_psycopg_is_told_with_its_version(alias, monkeypatch):
    monkeypatch.setattr("psycopg.__version__", "3.1.19")
    store_for.cache_clear()
    with pytest.raises(ExtraMissing, match=r"psycopg 3\.2 or newer, and this is 3\.1\.19: pip install 'delayedq\[pos"):
        store_for(alias)
    assert [message.id for message in messages()] == ["delayedq.E009"]


def test_too_old_a_database_is_e010_and_has_no_workers(alias, monkeypatch):
    """No server so old can be had: the bound is raised."""
    name = connections[alias].display_name
    monkeypatch.setitem(requirements.OLDEST, name, (99, 1))

    told_of = rf"DATABASES\['{alias}'\]: delayedq needs {name} 99\.1 or newer, and this is \d+\."
    (message,) = messages([alias])
    assert message.id == "delayedq.E010"
    with pytest.raises(CommandError, match=told_of):
        call_command("run_workers", drain=True)
