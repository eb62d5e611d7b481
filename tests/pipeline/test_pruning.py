"""Pruning and the archive share one table: what the archive has set about to move is not pruned."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from django.db import connections, transaction

from delayedq.models import FinishedMessage
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark.lake import Lake
from tests.pipeline.given import DAY, NOW, finished, history, ids

LATER = NOW + 9 * DAY
#: Seconds.
PATIENCE = 300


def open_batch(cutoff=NOW):
    ArchiveBatch.objects.create(name="now", number=1, lake="/lake", cutoff=cutoff, planned_at=NOW)


def test_what_an_archive_moves_is_left_to_it_until_it_is_done(store):
    finished(1, NOW - DAY).save()
    finished(2, NOW + DAY).save()
    open_batch()

    assert store.at(LATER).prune(timedelta(), 100) == 1
    assert ids() == {1}

    ArchiveBatch.objects.update(state=ArchiveState.DELETED, is_open=None)
    assert store.at(LATER).prune(timedelta(), 100) == 1


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_batch_that_is_opened_before_the_deletion_is_respected(store, connection):
    """Whatever pruning had read before, the statement that deletes asks by itself."""
    history(5)

    def execute(run, sql, params, many, context):
        if "DELETE FROM delayedq_finishedmessage" in sql and not ArchiveBatch.objects.exists():
            open_batch()
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        assert store.at(LATER).prune(timedelta(), 100) == 0
    assert len(ids()) == 5


@contextmanager
def pruning(store, limit):
    """A pruning that has deleted `limit` rows and not committed; yields the function that lets it commit."""
    deleted, commit = threading.Event(), threading.Event()

    def prune():
        with suppress(Exception), transaction.atomic(using=store.alias):
            store.at(LATER).prune(timedelta(), limit)
            deleted.set()
            commit.wait(PATIENCE)
        connections[store.alias].close()

    def let_commit():
        commit.set()
        thread.join(PATIENCE)

    thread = threading.Thread(target=prune)
    thread.start()
    try:
        assert deleted.wait(PATIENCE)
        yield let_commit
    finally:
        let_commit()


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("state", [ArchiveState.PLANNED, ArchiveState.WRITTEN, ArchiveState.VERIFIED])
def test_a_pruning_that_began_before_the_batch_spoils_no_copy(spark, store, address, tmp_path, state):
    """It may still delete: then the copy is made again, or holds what was deleted. On SQLite it can't: see above."""
    history(10)
    lake = Lake(spark, str(tmp_path / "lake"))

    with pruning(store, 3) as commit:

        def tell(batch):
            if batch.state == state:
                commit()

        [done] = Archiving(spark, store, address, lake.path, tell, address).run(NOW)

    copied = {row.id for row in lake.history().select("id").collect()}
    assert copied == set(range(1 if state is ArchiveState.VERIFIED else 4, 11))
    assert (done.row_count, done.deleted) == (len(copied), 7)
    assert ArchiveBatch.objects.get().attempt == (2 if state is ArchiveState.WRITTEN else 1)
    assert not FinishedMessage.objects.exists()


PRUNE = """
import django; django.setup()
from datetime import timedelta
from django.apps import apps
from django.core.management import call_command, get_commands
from delayedq.store import default_store
assert not apps.is_installed("delayedq.pipeline") and "run_pipeline" not in get_commands()
call_command("check")
print(default_store().prune(timedelta(), 100))
"""


def test_without_the_app_pruning_is_free(environment, alias):
    history(5)
    open_batch()
    command = [sys.executable, "-c", PRUNE]
    environment = environment | {"DJANGO_SETTINGS_MODULE": "tests.pipeline.not_installed"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert told.stdout.splitlines()[-1:] == ["5"], told.stderr
    assert ids() == set()
