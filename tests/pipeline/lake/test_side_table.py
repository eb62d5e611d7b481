"""Tables beside that of the messages: each row is there once, whoever adds it how often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.side_table import RecordedSteps

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def step(message_id, **changes):
    row = {"message_id": message_id, "kind": "a.b", "generation": 0, "name": "é", "result": "7", "recorded_at": MOMENT}
    return row | changes


@pytest.fixture
def steps(table):
    return RecordedSteps(table.path)


def stored(steps):
    return sorted(row["message_id"] for row in steps.rows("one", range(100)))


def test_rows_are_added_once_and_read_back_cell_by_cell(steps):
    assert steps.rows("one", [1]) == []
    assert steps.add("one", 1, [step(1), step(2)]) == 2
    assert steps.add("one", 2, [step(2), step(3, result=None)]) == 1
    assert steps.add("one", 3, []) == 0
    own = {"schema_version": 2, "source": "one"}
    found = sorted(steps.rows("one", [1, 2, 3]), key=lambda row: row["message_id"])
    assert found == [
        step(1) | own | {"batch": 1},
        step(2) | own | {"batch": 1},
        step(3, result=None) | own | {"batch": 2},
    ]
    assert steps.count() == 3


def test_databases_are_told_apart_and_a_step_that_was_done_again_is_another_one(steps):
    steps.add("one", 1, [step(1)])
    assert steps.add("two", 1, [step(1)]) == 1
    assert steps.add("one", 2, [step(1, result="8", recorded_at=MOMENT + timedelta(hours=1))]) == 1
    assert sorted(row["result"] for row in steps.rows("one", [1])) == ["7", "8"]


def test_a_masked_result_takes_the_place_of_the_plain_one(steps):
    """As a task becomes sensitive: what is beside it in the same file stays, as does that of other databases."""
    steps.add("one", 1, [step(1), step(1, name="other"), step(2)])
    steps.add("two", 1, [step(1)])
    steps.add("one", 2, [step(9)])
    assert steps.add("one", 3, [step(1, result="***"), step(3)]) == 2
    results = {(row["message_id"], row["name"]): row["result"] for row in steps.rows("one", [1, 2, 3, 9])}
    assert results == {(1, "é"): "***", (1, "other"): "7", (2, "é"): "7", (3, "é"): "7", (9, "é"): "7"}
    assert [row["result"] for row in steps.rows("two", [1])] == ["7"]
    assert (steps.count(), list(steps.faults())) == (6, [])
    assert steps.add("one", 4, [step(1, result="***")]) == 0


def test_of_two_that_saw_the_same_version_one_looks_again(steps, monkeypatch):
    steps.add("one", 1, [step(1)])
    real, others = RecordedSteps._append, [[step(2)], [step(3)]]

    def append(self, snapshot, rows, removed):
        if others:
            now = others.pop(0)
            assert RecordedSteps(Path(self.path).parent.as_posix()).add("one", 1, now) == 1
        return real(self, snapshot, rows, removed)

    monkeypatch.setattr(RecordedSteps, "_append", append)
    steps.add("one", 1, [step(2), step(3), step(4)])
    assert stored(steps) == [1, 2, 3, 4]


def test_what_is_not_there_after_it_was_added_is_an_error(steps, monkeypatch):
    monkeypatch.setattr(RecordedSteps, "_append", lambda *_: True)
    with pytest.raises(LakeUnusable, match=r"are not there\. Nothing was deleted"):
        steps.add("one", 1, [step(1)])


def test_a_spoiled_file_is_one_sentence(steps):
    steps.add("one", 1, [step(1)])
    [file] = Path(steps.path).glob("*.parquet")
    file.write_bytes(b"no parquet")
    with pytest.raises(LakeUnusable, match=r"_steps/.*can't be read: .*Restore it from a backup"):
        steps.rows("one", [1])


def test_a_table_of_a_newer_delayedq_is_refused(steps, monkeypatch):
    monkeypatch.setattr("delayedq.pipeline.lake.table.VERSION", 3)
    steps.create()
    monkeypatch.undo()
    with pytest.raises(LakeUnusable, match="holds schema version 3"):
        steps.add("one", 1, [step(1)])


def test_no_vacuum_of_the_messages_takes_its_files(steps, table):
    steps.add("one", 1, [step(1)])
    (Path(table.path) / "stray.parquet").write_bytes(b"")
    every = {"retention_hours": 0, "enforce_retention_duration": False, "dry_run": True, "full": True}
    taken = DeltaTable(table.path).vacuum(**every)
    assert taken == ["stray.parquet"]
    assert table.check()


def test_files_that_are_not_as_they_were_published_are_told(steps):
    assert list(steps.faults()) == []
    for number in range(5):
        steps.add("one", 1, [step(number), step(10 + number)])
    assert list(steps.faults()) == []
    gone, short, torn, fewer, _ = sorted(Path(steps.path).glob("*.parquet"))
    gone.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    torn.write_bytes(bytes(torn.stat().st_size))
    _rewrite_log(steps, fewer.name, '\\"numRecords\\": 2', '\\"numRecords\\": 3')
    size = short.stat().st_size
    assert sorted(steps.faults()) == [
        f"_steps/{gone.name} is missing, with 2 rows",
        f"_steps/{short.name} has {size:,} bytes, and was published with {size + 1:,}",
        f"_steps/{torn.name} can't be read, and was published with 2 rows",
        f"_steps/{fewer.name} has 2 rows that can be read, and was published with 3",
    ]


def _rewrite_log(steps, name, before, after):
    """As if the file had been published with another count."""
    (log,) = [path for path in Path(steps.path, "_delta_log").glob("*.json") if name in path.read_text()]
    text = log.read_text()
    assert before in text
    log.write_text(text.replace(before, after))


# Compaction and vacuum


def files(steps):
    return {path.name for path in Path(steps.path).glob("*.parquet")}


def given_files(steps, number):
    for batch in range(1, number + 1):
        steps.add("one", batch, [step(batch), step(50 + batch)])


LARGE = 2**20


def test_small_files_become_one_with_the_same_rows(steps):
    given_files(steps, 5)
    before = steps.rows("one", range(100))
    assert list(steps.compact(LARGE)) == [(5, 10)]
    after = steps.rows("one", range(100))
    assert sorted(map(str, after)) == sorted(map(str, before))
    assert (steps.count(), len(steps._files(steps.snapshot()))) == (10, 1)
    assert list(steps.compact(LARGE)) == []
    assert steps.add("one", 6, [step(1), step(99)]) == 1  # the row that is there is found
    assert list(steps.faults()) == []


def test_a_compaction_takes_about_as_much_at_once_as_a_file_may_have(steps):
    given_files(steps, 5)
    size = max(path.stat().st_size for path in Path(steps.path).glob("*.parquet"))
    assert list(steps.compact(1)) == []
    assert list(steps.compact(size + 1)) == [(2, 4), (2, 4)]
    assert stored(steps) == [1, 2, 3, 4, 5, 51, 52, 53, 54, 55]


def test_without_a_table_nothing_is_joined_or_deleted(steps):
    assert list(steps.compact(LARGE)) == []
    assert steps.unneeded(datetime.now(UTC)) == []


def test_of_two_compactions_at_once_one_replaces_the_files(steps, monkeypatch):
    given_files(steps, 3)
    real, others = RecordedSteps._written, [RecordedSteps(Path(steps.path).parent.as_posix())]

    def written(self, rows, *, changes):
        if others:
            assert list(others.pop().compact(LARGE)) == [(3, 6)]
        return real(self, rows, changes=changes)

    monkeypatch.setattr(RecordedSteps, "_written", written)
    assert list(steps.compact(LARGE)) == [(0, 0)]
    assert steps.count() == 6


def test_what_is_added_meanwhile_stays(steps, monkeypatch):
    given_files(steps, 3)
    real, others = RecordedSteps._written, [RecordedSteps(Path(steps.path).parent.as_posix())]

    def written(self, rows, *, changes):
        if others:
            others.pop().add("one", 4, [step(4)])
        return real(self, rows, changes=changes)

    monkeypatch.setattr(RecordedSteps, "_written", written)
    assert list(steps.compact(LARGE)) == [(3, 6)]
    assert stored(steps) == [1, 2, 3, 4, 51, 52, 53]


def test_a_file_that_lacks_rows_is_not_replaced(steps, monkeypatch):
    given_files(steps, 2)
    real = RecordedSteps._read
    monkeypatch.setattr(RecordedSteps, "_read", lambda *given: real(*given)[1:])
    with pytest.raises(LakeUnusable, match=r"2 rows that can be read.* Nothing was replaced"):
        list(steps.compact(LARGE))
    assert steps.count() == 4


def test_a_vacuum_takes_what_no_version_of_the_retention_has(steps):
    given_files(steps, 3)
    replaced = files(steps)
    list(steps.compact(LARGE))
    (Path(steps.path) / "stray.parquet").write_bytes(b"")
    week_ago = datetime.now(UTC) - timedelta(days=7)
    assert steps.unneeded(week_ago) == []
    now = datetime.now(UTC) + timedelta(seconds=1)
    unneeded = {info.path for info in steps.unneeded(now)}
    assert unneeded == replaced | {"stray.parquet"}
    steps.delete(sorted(unneeded))
    assert stored(steps) == [1, 2, 3, 51, 52, 53]
