"""`manage.py check` finds what the pipeline would stumble over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.checks import run_checks

from delayedq import metrics
from delayedq.operations.backlogs import backlog
from delayedq.pipeline import checks
from delayedq.pipeline.models import ArchiveBatch


def found(*, deployment=False):
    return [
        one
        for one in run_checks(include_deployment_checks=deployment, databases=[])
        if one.id in {"delayedq.W005", "delayedq.W006"}
    ]


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """PySpark is installed, as far as the check can tell, and Java is not."""
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_deployment_without_java_is_w005_and_names_the_package(no_java):
    (warning,) = found(deployment=True)
    assert warning.id == "delayedq.W005"
    assert "apt install openjdk-17-jre-headless" in warning.msg


def test_without_java_one_can_develop(no_java):
    assert found() == []


def test_who_connects_to_spark_needs_no_java(no_java, settings):
    settings.DELAYEDQ = {"SPARK_REMOTE": "sc://spark.example"}
    assert found(deployment=True) == []


def test_a_deployment_without_pyspark_is_w005(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    (warning,) = found(deployment=True)
    assert (warning.id, warning.hint) == ("delayedq.W005", "pip install 'delayedq[spark]'.")


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"RETENTION": timedelta(days=7)}, ["delayedq.W006"]),
        ({"RETENTION": timedelta(days=8)}, []),
        ({"RETENTION": None}, []),
        ({"RETENTION": timedelta(days=1), "LAKE": None}, []),
    ],
    ids=["pruned before", "archived before", "never pruned", "no lake"],
)
def test_history_that_is_pruned_before_it_is_archived_is_w006(settings, given, ids):
    settings.DELAYEDQ = {"LAKE": "lake", "ARCHIVE_AFTER": timedelta(days=7)} | given
    assert [one.id for one in found()] == ids


def test_an_archive_that_is_open_for_over_a_day_is_w009(alias, store):
    now = store.now()
    ArchiveBatch.objects.create(name="young", number=1, lake="/lake", cutoff=now, planned_at=now - timedelta(hours=23))
    assert checks.check_open_batch(databases=[alias]) == []

    ArchiveBatch.objects.update(name="old", planned_at=now - timedelta(hours=25))
    [warning] = checks.check_open_batch(databases=[alias])
    assert (warning.id, "old" in warning.msg, "--abandon" in warning.hint) == ("delayedq.W009", True, True)
    assert checks.check_open_batch(databases=None) == []

    ArchiveBatch.objects.update(is_open=None)
    assert checks.check_open_batch(databases=[alias]) == []


def test_the_age_of_an_open_batch_is_a_metric(alias, store):
    now = store.now()
    assert backlog(store).archive == 0
    ArchiveBatch.objects.create(name="old", number=1, lake="/lake", cutoff=now, planned_at=now - timedelta(hours=2))

    metrics._cache.clear()
    [shown] = [line for line in metrics.exposed()[0].decode().splitlines() if _is_of_archive(line, alias)]
    assert float(shown.split()[1]) == pytest.approx(7_200, abs=60)
    assert backlog(store).archive == pytest.approx(7_200, abs=60)


def _is_of_archive(line, alias):
    return line.startswith(f'delayedq_archive_open_seconds{{database="{alias}"}}')
