"""Small files become few, and each message is still there once: also beside archives, readers and other compactions."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from django.core.management import CommandError, call_command

from delayedq.models import FinishedMessage
from delayedq.pipeline.models import ArchiveBatch
from delayedq.pipeline.spark import compacting
from delayedq.pipeline.spark.compacting import compact
from tests.pipeline.archives import ONE_STORE, Killed, archived
from tests.pipeline.given import NOW, history
from tests.pipeline.given import ids as ids_of_table

pytestmark = ONE_STORE


@pytest.fixture
def lake(lake, archiving):
    """Nine messages of three days, in three batches, each with files of several days."""
    for first in (1, 4, 7):
        history(3, first=first)
        list(archiving().run(NOW))
    return lake


@pytest.fixture
def run(lake, capsys):
    def run_step(*arguments):
        call_command("run_pipeline", *map(str, arguments), "--lake", lake.path)
        return capsys.readouterr().out

    return run_step


EACH = list(range(1, 10))


def test_the_files_of_a_day_become_one_and_the_books_still_hold(lake, run, archiving):
    days = {file.day for file in lake.table.snapshot().files}
    assert len(lake.table.snapshot().files) == 3 * len(days)
    assert "9 messages are now 3" in run("compact")

    files = lake.table.snapshot().files
    assert len(files) == len(days)
    assert (archived(lake), sum(file.rows for file in files)) == (EACH, 9)
    assert [file.least["batch"] for file in files] == [1] * len(days)
    assert "nothing to compact" in run("compact")
    assert "9 messages in 3 files are as the books say" in run("check")
    history(1, first=10)
    list(archiving().run(NOW))
    assert archived(lake) == [*EACH, 10]


def test_of_two_compactions_at_once_one_changes_nothing(lake, monkeypatch):
    real, others = compacting._committed, [lambda: list(compact(lake))]

    def committed(*given):
        while others:
            others.pop()()
        return real(*given)

    monkeypatch.setattr(compacting, "_committed", committed)
    assert [done.before for done in compact(lake)] == [0]
    assert archived(lake) == EACH


def test_a_compaction_and_an_archive_at_once_both_count(lake, archiving, monkeypatch):
    real = compacting._committed

    def committed(*given):
        history(1, first=10)
        list(archiving().run(NOW))
        return real(*given)

    monkeypatch.setattr(compacting, "_committed", committed)
    [done] = compact(lake)
    assert done.before == 9
    assert archived(lake) == [*EACH, 10]
    assert ids_of_table() == set()


@pytest.mark.parametrize("where", ["measured", "_committed"])
def test_a_compaction_that_was_killed_changes_nothing(lake, monkeypatch, where):
    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(compacting, where, die)
        with pytest.raises(Killed):
            list(compact(lake))
    assert archived(lake) == EACH
    assert [done.rows for done in compact(lake)] == [9]
    assert archived(lake) == EACH


def test_a_batch_that_was_compacted_before_it_was_recorded_is_deleted_and_not_written_again(lake, archiving):
    """As if the archive had been killed between its commit and the books, and a compaction had followed."""
    history(2, first=20)
    backup = list(FinishedMessage.objects.all())
    list(archiving().run(NOW))
    list(compact(lake))
    FinishedMessage.objects.bulk_create(backup)
    ArchiveBatch.objects.filter(number=4).update(state="written", is_open=True, checksums=None)

    [done] = archiving().run(NOW)

    assert (done.row_count, done.deleted) == (2, 2)
    assert archived(lake) == [*EACH, 20, 21]
    assert ids_of_table() == set()


# Check


def test_files_of_another_engine_are_as_the_books_say_until_it_doubles_rows(lake, run, capsys):
    first, second = DeltaTable(lake.path), DeltaTable(lake.path)
    first.optimize.compact()
    assert "9 messages in 3 files are as the books say" in run("check")
    second.optimize.compact()
    with pytest.raises(CommandError, match="3 faults"):
        run("check")
    assert "batch 1 has 6 rows, and the books say 3" in capsys.readouterr().out


def test_each_fault_of_the_files_is_named(lake, run):
    first, second, third = (Path(lake.path, file.path) for file in lake.table.snapshot().files[:3])
    first.unlink()
    second.write_bytes(b"short")
    size = third.stat().st_size
    third.write_bytes(b"x" * size)
    third.with_name(f".{third.name}.crc").unlink(missing_ok=True)
    ArchiveBatch.objects.update(checksums={"row_count": 3, "digest": "0.0", "first": 0, "last": 0})

    with pytest.raises(CommandError, match=r"faults in the lake at .*backup"):
        run("check")


def test_a_check_tells_which_file_and_which_batch(lake, capsys):
    file = lake.table.snapshot().files[0]
    Path(lake.path, file.path).unlink()
    number = file.least["batch"]
    with pytest.raises(CommandError, match="2 faults"):
        call_command("run_pipeline", "check", "--lake", lake.path)
    told = capsys.readouterr().out
    assert f"{file.path} is missing, with 1 rows" in told
    assert f"batch {number} has 2 rows, and the books say 3" in told
