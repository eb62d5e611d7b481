"""A lake that lost its last versions, or is somewhere else now, while a batch is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.core.management import call_command

from delayedq.exceptions import ArchiveFailed, LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.lake import Lake
from tests.pipeline.archives import ONE_STORE, Killed, archived, die_at
from tests.pipeline.commands.test_archive_exact import Told, checked
from tests.pipeline.given import NOW, history, ids

pytestmark = ONE_STORE


@pytest.fixture
def verified(archiving):
    """A batch of twenty rows, published and not yet deleted."""
    history(20)
    with pytest.raises(Killed):
        list(archiving(tell=die_at(ArchiveState.VERIFIED)).run(NOW))


@pytest.fixture
def half_deleted(archiving, monkeypatch):
    """A batch of twenty rows, of which the table has sixteen."""
    history(20)

    def die(*_):
        FinishedMessage.objects.filter(id__lte=4).delete()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, "delete", die)
        with pytest.raises(Killed):
            list(archiving().run(NOW))


def set_back(lake):
    """Without its last version, as a backup from before: its path, and its content."""
    last = max(Path(lake.path, "_delta_log").glob("*.json"))
    content = last.read_bytes()
    last.unlink()
    return last, content


def test_a_lake_without_the_rows_of_a_batch_keeps_it_from_being_deleted(half_deleted, archiving, lake):
    last, content = set_back(lake)

    with pytest.raises(ArchiveFailed, match=r"lacks 20 rows .*newer backup and run `archive` again, or .*--abandon"):
        list(archiving().run(NOW))
    assert ArchiveBatch.objects.get().state == ArchiveState.DELETING
    last.write_bytes(content)

    [done] = archiving().run(NOW)
    assert (done.deleted, ids(), archived(lake)) == (16, set(), list(range(1, 21)))


def test_rows_that_the_lake_lacks_are_given_up_with_their_number(half_deleted, archiving, lake, store):
    told = Told(store, lake)
    set_back(lake)

    given_up = archiving().abandon()

    assert (given_up.missing, given_up.lost, given_up.damaged) == (20, 4, ())
    assert checked(told) == ["  batch 1: 4 rows are in neither the table nor the lake"]
    [done] = archiving().run(NOW)
    assert (done.deleted, ids(), archived(lake)) == (16, set(), list(range(5, 21)))


def test_a_verified_batch_that_the_lake_lacks_is_given_up_whole(verified, archiving, lake):
    set_back(lake)
    with pytest.raises(ArchiveFailed, match="--abandon"):
        list(archiving().run(NOW))

    assert archiving().abandon().batch.state == ArchiveState.ABANDONED

    [done] = archiving().run(NOW)
    assert (done.deleted, ids(), archived(lake)) == (20, set(), list(range(1, 21)))


def test_rows_of_a_compacted_file_that_the_lake_lacks_are_found_missing(verified, archiving, lake):
    """Its files hold rows of other batches, too."""
    snapshot = lake.table.snapshot()
    lake.write("compacted", lake.history().where("id <= 15"))
    written = archive.measured(lake.files("messages/compacted")).files
    assert lake.table.replace(snapshot, list(snapshot.files), [f._replace(least={}, most={}) for f in written])

    with pytest.raises(ArchiveFailed, match="lacks 5 rows"):
        list(archiving().run(NOW))
    assert ids() == set(range(1, 21))


@pytest.mark.parametrize("state", ["verified", "half_deleted"])
def test_a_batch_goes_on_where_its_lake_was_moved_to(state, request, archiving, lake, spark, store, address, tmp_path):
    request.getfixturevalue(state)
    there = str(tmp_path / "moved")
    shutil.move(lake.path, there)

    with pytest.raises(LakeUnusable, match="say where it is now"):
        list(archiving().run(NOW))
    [done] = Archiving(spark, store, address, there, here=address).run(NOW)

    assert done.deleted == (20 if state == "verified" else 16)
    assert (ids(), archived(Lake(spark, there))) == (set(), list(range(1, 21)))
    assert not Path(lake.path).exists()


def test_a_verified_batch_whose_lake_is_gone_is_given_up(verified, archiving, lake):
    shutil.rmtree(lake.path)
    with pytest.raises(LakeUnusable, match="`archive --abandon` gives up the open batch"):
        list(archiving().run(NOW))

    archiving().abandon()

    [done] = archiving().run(NOW)
    assert (done.deleted, ids(), archived(lake)) == (20, set(), list(range(1, 21)))


def test_a_lake_that_lacks_batches_of_the_books_is_told_by_each_archive(archiving, lake, settings, capsys):
    settings.DELAYEDQ = {"LAKE": lake.path}
    history(4)
    list(archiving().run(NOW))
    call_command("run_pipeline", "archive")
    assert "may be an early backup" not in capsys.readouterr().out
    set_back(lake)

    call_command("run_pipeline", "archive")

    told = capsys.readouterr().out
    assert "has batches of this database up to 0, and the books up to 1" in told
    assert "`run_pipeline check` tells what is missing" in told
