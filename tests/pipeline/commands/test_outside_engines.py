"""Polars and DuckDB beside an archive that moves, is compacted, and is killed: they see only what is published."""

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
from delayedq.pipeline.spark import compacting
from tests.pipeline.archives import ONE_STORE, forget_lease
from tests.pipeline.given import NOW, history
from tests.pipeline.given import ids as ids_of_table
from tests.pipeline.lake.engines import read_by_all
from tests.store.given import kill_others


@ONE_STORE
def test_at_each_step_of_archive_and_compaction_they_read_what_is_published(archiving, lake, monkeypatch):
    history(6, days=1)
    seen = []

    def tell(batch):
        seen.append(read_by_all(lake.path) if lake.table.exists() else [])

    list(archiving(tell=tell).run(NOW, batch_rows=2))
    two, four, each = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]
    assert seen == [[], [], two, two, two, four, four, four, each]

    real = compacting._committed
    monkeypatch.setattr(compacting, "_committed", lambda *given: seen.append(read_by_all(lake.path)) or real(*given))
    assert [done.before > done.after for done in compacting.compact(lake)] == [True]
    assert seen[-1] == read_by_all(lake.path) == each


#: The archive reaches these one after the other; each is met once by a SIGKILL.
KILLED_AT = ("planned", "written", "verified")


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_archives_that_are_killed_lose_and_double_nothing_for_any_reader(
    java, environment, store, connection, tmp_path
):
    history(200)
    each, path = list(range(1, 201)), str(tmp_path / "lake")
    command = [sys.executable, "-m", "django", "run_pipeline", "archive", "--older-than", "0s", "--lake", path]
    for state in KILLED_AT:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        with transaction.atomic(using=store.alias):
            keep_all(connection)
            while process.poll() is None and not ArchiveBatch.objects.filter(state=state, is_open=True).exists():
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
