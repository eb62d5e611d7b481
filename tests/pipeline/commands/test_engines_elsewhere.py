"""Polars and DuckDB beside archives that are killed, each in a process with a Spark of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.db import transaction

from delayedq import history as both
from delayedq.pipeline.models import ArchiveBatch
from tests.pipeline.archives import forget_lease
from tests.pipeline.given import history
from tests.pipeline.given import ids as ids_of_table
from tests.pipeline.lake.engines import read_by_all
from tests.store.given import kill_others

#: The archive reaches these one after the other; each is met once by a SIGKILL.
KILLED_AT = ("planned", "written", "verified")


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.nightly
def test_archives_that_are_killed_lose_and_double_nothing_for_any_reader(
    java, environment, store, connection, tmp_path
):
    history(200)
    each, path = list(range(1, 201)), str(tmp_path / "lake")
    command = [sys.executable, "-m", "django", "run_pipeline", "archive", "--older-than", "0s", "--lake", path]
    for number in range(len(KILLED_AT)):
        reached = (*KILLED_AT[number:], "deleting")  # it may pass a short one between two looks
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        with transaction.atomic(using=store.alias):
            keep_all(connection)
            while process.poll() is None and not ArchiveBatch.objects.filter(state__in=reached, is_open=True).exists():
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kill_others(connection)
        forget_lease()
        assert seen_by_all(path) in ([], each)
        assert of_both(path) == each

    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (seen_by_all(path), of_both(path), ids_of_table()) == (each, each, set())


def keep_all(connection):
    """Until the end of the transaction: an archive may read, and waits in `verified` to delete."""
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE delayedq_finishedmessage IN SHARE MODE")


def seen_by_all(path):
    return read_by_all(path) if Path(path, "_delta_log").exists() else []


def of_both(path):
    return sorted(both.read(lake=path, columns=["id"]).column("id").to_pylist())
