"""The table of the lake: what counts, since when, and what two writers make of it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delayedq.exceptions import InvalidOption, LakeUnusable
from delayedq.pipeline.lake.columns import VERSION
from delayedq.pipeline.lake.table import LakeTable, others
from tests.pipeline.lake.files import NOON, ids, publish, row, write

DAY = timedelta(days=1)


@pytest.fixture
def table(tmp_path):
    made = LakeTable(str(tmp_path / "lake"))
    made.create()
    return made


# What is there


def test_a_lake_is_made_in_a_missing_or_empty_directory(tmp_path):
    (tmp_path / "empty" / "about").mkdir(parents=True)
    for path in (tmp_path / "missing", tmp_path / "empty"):
        table = LakeTable(str(path))
        assert (table.check(), table.exists()) == (False, False)
        with pytest.raises(LakeUnusable, match="There is no lake at"):
            table.snapshot()
        table.create()
        table.create()
        assert (table.check(), table.snapshot().row_count) == (True, 0)


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LakeUnusable, match=r"holds thesis\.txt"):
        LakeTable(str(tmp_path)).check()


def test_a_log_that_lacks_a_version_is_named_with_its_cure(table):
    for number in (1, 2, 3):
        publish(table, number, [row(number)])
    Path(table.path, "_delta_log", f"{2:020}.json").unlink()
    with pytest.raises(LakeUnusable, match=r"lacks a version: restore .* in _delta_log from a backup"):
        LakeTable(table.path).snapshot()


def test_files_of_an_archive_that_was_killed_before_the_table_was_made_are_no_obstacle(tmp_path):
    (tmp_path / "messages" / "a-1").mkdir(parents=True)
    (tmp_path / "messages" / "a-1" / "part-0.parquet").write_text("stray")
    assert LakeTable(str(tmp_path)).check() is False


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [("delayedq history", "sales", "its name is 'sales'"), (f'"{VERSION}"', '"99"', "holds schema version 99")],
    ids=["another table", "newer"],
)
def test_a_table_that_is_not_ours_is_refused(table, was, becomes, message):
    first = Path(table.path, "_delta_log", "00000000000000000000.json")
    first.write_text(first.read_text().replace(was, becomes))
    for ask in (table.check, table.snapshot):
        with pytest.raises(LakeUnusable, match=message):
            ask()


def test_a_lake_needs_a_directory_of_its_own():
    with pytest.raises(InvalidOption):
        LakeTable("/")
    assert LakeTable("file:///srv/a%20lake/").path == "/srv/a lake"
    assert LakeTable("s3://bucket/lake/").path == "s3://bucket/lake"


# Publishing


def test_a_batch_counts_from_its_commit_and_stray_files_never(table):
    write(table, "stray-1", [row(9)])
    assert publish(table, 1, [row(1), row(2, finished_at=NOON + DAY)])
    assert ids(table) == [1, 2]
    assert table.snapshot().last("app") == 1


def test_a_number_is_published_once(table):
    assert publish(table, 1, [row(1)])
    assert not publish(table, 1, [row(1)], directory="again")
    assert publish(table, 3, [row(3)])
    assert not publish(table, 2, [row(2)])
    assert ids(table) == [1, 3]


def test_of_two_writers_of_one_database_that_saw_the_same_version_one_is_refused(table):
    """Also if they give the batch different numbers: the second does not know what the first has written."""
    for number in (1, 2):
        snapshot = table.snapshot()
        first, second = (write(table, f"{number}-{name}", [row(number)]) for name in "ab")
        assert table.publish(snapshot, "app", number, first)
        assert not table.publish(snapshot, "app", number, second)
        assert not table.publish(snapshot, "app", number + 5, second)
    assert ids(table) == [1, 2]


def test_databases_that_share_a_lake_do_not_refuse_each_other(table):
    snapshot = table.snapshot()
    for source in ("app", "shop"):
        files = write(table, source, [row(1, source=source)])
        assert table.publish(snapshot, source, 1, files)
    assert ids(table) == [1, 1]
    assert ids(table, source=["shop"]) == [1]
    assert (table.snapshot().last("app"), table.snapshot().last("shop"), table.snapshot().last("x")) == (1, 1, 0)


def test_a_commit_says_what_it_published(table):
    files = write(table, "a-1", [row(1)])
    table.publish(table.snapshot(), "app", 1, files, rows=1, digest="ab")
    [commit, _] = table.snapshot().table.history()
    assert commit["delayedq"] == {"source": "app", "batch": 1, "rows": 1, "digest": "ab"}


# Compaction


def test_files_replace_others_in_one_version(table):
    for number in (1, 2, 3):
        publish(table, number, [row(number)])
    before = table.snapshot()
    whole = write(table, "compacted", [row(n, batch=n) for n in (1, 2, 3)])
    assert table.replace(before, list(before.files), whole)
    assert ids(table) == [1, 2, 3]
    assert len(table.snapshot().files) == 1
    assert table.snapshot().last("app") == 3


def test_of_two_compactions_that_saw_the_same_version_one_is_refused(table):
    """delta-rs 1.6 takes both if it may try again, and the rows are there twice."""
    publish(table, 1, [row(1), row(2)])
    snapshot = table.snapshot()
    for number, taken in enumerate((True, False)):
        assert table.replace(snapshot, list(snapshot.files), write(table, f"c{number}", [row(1), row(2)])) is taken
    assert ids(table) == [1, 2]


def test_a_compaction_that_began_before_a_batch_was_published_is_refused_and_the_batch_is_not(table):
    publish(table, 1, [row(1)])
    snapshot = table.snapshot()
    publish(table, 2, [row(2)])
    assert not table.replace(snapshot, list(snapshot.files), write(table, "c", [row(1)]))
    newest, files = table.snapshot(), write(table, "d", [row(1)])
    stale = table.snapshot()
    assert table.replace(newest, snapshot.chosen(batch=[1]), files)
    assert table.publish(stale, "app", 3, write(table, "app-3", [row(3, batch=3)]))
    assert ids(table) == [1, 2, 3]


# Files by their statistics


def test_files_are_chosen_by_their_bounds(table):
    publish(table, 1, [row(1, key="a"), row(5, key="c")])
    publish(table, 2, [row(7, finished_at=NOON + DAY)])
    snapshot = table.snapshot()

    def numbers(**given):
        return sorted(file.least["batch"] for file in snapshot.chosen(**given))

    assert numbers() == [1, 2]
    assert (numbers(id=[3]), numbers(id=[6]), numbers(id=[6, 7])) == ([1], [], [2])
    assert (numbers(key=["b"]), numbers(key=["d"])) == ([1], [])  # without a key in any row, it is not looked into
    assert (numbers(since=NOON + DAY), numbers(until=NOON + DAY)) == ([2], [1])
    assert numbers(batch=others(2, {1})) == [2]


def test_a_file_without_statistics_may_hold_anything(table):
    [file] = write(table, "a-1", [row(1)])
    table.publish(table.snapshot(), "app", 1, [file._replace(least={}, most={}, nulls={})])
    assert ids(table, id=[1]) == [1]
    assert ids(table, id=[2]) == []


def test_bounds_come_back_as_they_were_given(table):
    [file] = write(table, "a-1", [row(1, key='Zoë "x"\n', finished_at=NOON + timedelta(microseconds=1))])
    table.publish(table.snapshot(), "app", 1, [file])
    assert table.snapshot().files == (file,)
    [log] = Path(table.path, "_delta_log").glob("*1.json")
    added = [json.loads(line)["add"] for line in log.read_text().splitlines() if line.startswith('{"add"')]
    assert json.loads(added[0]["stats"])["minValues"]["finished_at"] == "2026-02-28T12:00:00.000001Z"


def test_what_may_be_in_both_is_all_that_is_not_settled():
    assert others(4, {1, 3}) == [2, 4]
    assert others(0, {1}) == []


# Vacuum


def test_only_what_no_version_of_the_retention_has_is_unneeded(table):
    publish(table, 1, [row(1)])
    publish(table, 2, [row(2)])
    snapshot = table.snapshot()
    table.replace(snapshot, list(snapshot.files), write(table, "c", [row(1), row(2)]))
    write(table, "stray", [row(3)])
    now = datetime.now(UTC)

    assert table.unneeded(now - DAY) == []
    for path in Path(table.path, "messages").rglob("*.parquet"):
        os.utime(path, ((now - 2 * DAY).timestamp(),) * 2)
    # What the compaction replaced is in a version that was current a day ago, or later.
    assert [info.path for info in table.unneeded(now - DAY)] == ["messages/stray/day=2026-02-28/part-0.parquet"]
    unneeded = {info.path.split("/")[1] for info in table.unneeded(now + timedelta(hours=1))}
    assert unneeded == {"stray", "app-1", "app-2"}
    table.delete([info.path for info in table.unneeded(now + timedelta(hours=1))])
    assert ids(table) == [1, 2]
