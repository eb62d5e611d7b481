"""No row is lost: whatever is interrupted, changed or damaged, each is in the table or in the lake, as it is now."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError

from delayedq.exceptions import ArchiveFailed, LakeDamaged, LakeUnusable
from delayedq.models import FinishedMessage, Outcome
from delayedq.pipeline.commands.lake import run_check
from delayedq.pipeline.commands.restore import run_restore
from delayedq.pipeline.lake.damage import damaged
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.store import operator_store
from tests.pipeline.archives import ONE_STORE, Killed, archived, die_at
from tests.pipeline.given import NOW, finished, history, ids

#: Of each column another value than `finished` gives.
OTHERS = {
    "outcome": "cancelled", "queue": "other", "kind": "tests.app.tasks.echo", "key": "other", "priority": 9,
    "attempts": 7, "max_attempts": 3, "worker": "other", "payload": '{"args":[-1]}', "metadata": '{"a": 1}',
    "result": '"other"', "errors": "[]",
    **dict.fromkeys(("created_at", "scheduled_at_initially", "scheduled_at", "started_at"), NOW - timedelta(days=30)),
}  # fmt: skip


class Told:
    """What a step is given, and what it tells."""

    def __init__(self, store, lake):
        self.store, self.lake, self.table, self.said = store, lake, lake.table, []

    def tell(self, text):
        self.said.append(text)


@pytest.fixture
def told(store, lake):
    return Told(store, lake)


def checked(told):
    """What `check` complains of."""
    told.said.clear()
    try:
        run_check(told, {})
    except LakeDamaged:
        return told.said
    return []


def restored(told, *chosen):
    options = dict.fromkeys(("ids", "batch", "since", "until")) | {"ids": list(chosen)}
    run_restore(told, options)


def in_lake(lake, *columns):
    return {row.id: tuple(row[name] for name in columns) for row in lake.history().select("id", *columns).collect()}


def parquet(lake):
    return sorted(Path(lake.path).glob("messages/*/day=*/*.parquet"))


def truncate(file):
    file.write_bytes(file.read_bytes()[:100])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


# What changes meanwhile


def test_a_row_that_changes_between_verified_and_deleted_stays_and_goes_as_it_is_then(archiving, lake, told, alias):
    names = list(OTHERS)
    FinishedMessage.objects.bulk_create(finished(1 + place) for place in range(len(names) + 1))

    def change(batch):
        if batch.state == ArchiveState.VERIFIED and batch.number == 1:
            for place, name in enumerate(names):
                FinishedMessage.objects.filter(id=1 + place).update(**{name: OTHERS[name]})

    first, second = archiving(tell=change).run(NOW)

    assert (first.row_count, first.deleted, first.changed) == (len(names) + 1, 1, len(names))
    assert first.some == tuple(range(1, 11))
    assert (second.deleted, second.added, second.replaced) == (len(names), len(names), len(names))
    assert ids() == set()
    assert archived(lake) == list(range(1, len(names) + 2))
    found = in_lake(lake, *(("state" if name == "outcome" else name) for name in names))
    assert [found[1 + place][place] for place in range(4)] == ["cancelled", "other", "tests.app.tasks.echo", "other"]
    assert checked(told) == []


@ONE_STORE
def test_a_dead_letter_that_is_discarded_meanwhile_is_discarded_in_the_lake(archiving, lake, store):
    FinishedMessage.objects.bulk_create(finished(number, outcome="failed") for number in range(1, 4))

    def discard(batch):
        if batch.state == ArchiveState.VERIFIED and batch.number == 1:
            assert operator_store(store.alias).relabel({2}, Outcome.FAILED, Outcome.CANCELLED) == {2}

    list(archiving(tell=discard).run(NOW))

    assert in_lake(lake, "state") == {1: ("failed",), 2: ("cancelled",), 3: ("failed",)}
    assert ids() == set()


def test_a_restored_row_that_is_changed_replaces_its_older_version(archiving, lake, told, alias):
    history(20)
    list(archiving().run(NOW))
    restored(told, 3, 4, 5)
    FinishedMessage.objects.filter(id=4).update(outcome="cancelled", result=None)

    [done] = archiving().run(NOW)

    assert (done.row_count, done.added, done.replaced, done.deleted) == (3, 1, 1, 3)
    assert archived(lake) == list(range(1, 21))
    assert in_lake(lake, "state", "result")[4] == ("cancelled", None)
    assert ids() == set()
    assert checked(told) == []
    assert list(archiving().run(NOW)) == []


@ONE_STORE
def test_a_task_that_became_sensitive_replaces_what_was_plain(archiving, lake, told, settings, registry):
    settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "masked"}
    from tests.app import tasks

    kind = tasks.echo.module_path
    FinishedMessage.objects.bulk_create(finished(number, kind=kind) for number in (1, 2))
    list(archiving().run(NOW))
    restored(told, 1)
    registry[kind] = type("Sensitive", (), {"sensitive": True})()

    [done] = archiving().run(NOW)

    assert (done.added, done.replaced, done.deleted) == (1, 1, 1)
    found = in_lake(lake, "payload")
    assert (found[1], found[2]) == (('"[masked]"',), ('{"args":[2]}',))
    assert ids() == set()


@ONE_STORE
def test_rows_that_never_can_be_deleted_end_the_command_and_name_themselves(archiving, monkeypatch):
    history(3)
    never = {vendor: statement.replace("given.digest", "''") for vendor, statement in archive.DELETE.items()}
    never["sqlite"] = never["sqlite"].replace("json_extract(given.value, '$[1]')", "''")
    monkeypatch.setattr(archive, "DELETE", never)

    with pytest.raises(ArchiveFailed, match=r"3 rows .*ids: 1, 2, 3"):
        list(archiving().run(NOW))
    assert ids() == {1, 2, 3}


# What is interrupted and damaged


@pytest.fixture
def half_deleted(archiving, lake, monkeypatch):
    """Killed in the middle of its deletion: the rows of two files of six are left, and one of these is damaged."""
    FinishedMessage.objects.bulk_create(
        finished(number, NOW - timedelta(days=1 + number // 10)) for number in range(60)
    )

    def die(copying, *given):
        FinishedMessage.objects.filter(id__gte=20).delete()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, "delete", die)
        with pytest.raises(Killed):
            list(archiving().run(NOW))
    damage = next(file for file in parquet(lake) if "day=2026-02-28" in str(file))
    right = damage.read_bytes()
    truncate(damage)
    return damage, right


@ONE_STORE
def test_what_has_begun_to_delete_is_completed_file_by_file(half_deleted, archiving, lake, told):
    assert ArchiveBatch.objects.get().state == ArchiveState.DELETING

    with pytest.raises(ArchiveFailed, match=r"1 of its files are damaged, with 10 rows: .*archive --abandon"):
        list(archiving().run(NOW))
    assert ids() == set(range(10))  # those of the damaged file stay
    given_up = archiving().abandon()

    assert (len(given_up.damaged), given_up.lost) == (1, 0)
    assert archived(lake) == list(range(10, 60))
    [done] = archiving().run(NOW)
    assert (done.row_count, done.deleted) == (10, 10)
    assert archived(lake) == list(range(60))
    assert checked(told) == []


@ONE_STORE
def test_rows_that_only_a_damaged_file_had_are_told_with_their_number(half_deleted, archiving, lake, told):
    FinishedMessage.objects.filter(id__in=range(4)).delete()  # as the deletion that was killed

    given_up = archiving().abandon()

    assert given_up.lost == 4
    assert ids() == set(range(4, 10))
    assert checked(told) == ["  batch 1: 4 rows are in neither the table nor the lake"]


@ONE_STORE
def test_a_file_that_is_put_back_completes_the_batch(half_deleted, archiving, lake):
    with pytest.raises(ArchiveFailed):
        list(archiving().run(NOW))
    damage, right = half_deleted
    damage.write_bytes(right)

    [done] = archiving().run(NOW)

    assert (done.deleted, ids(), archived(lake)) == (10, set(), list(range(60)))


@ONE_STORE
def test_nothing_is_given_up_while_the_files_are_intact_or_out_of_reach(archiving, lake, monkeypatch):
    history(6)

    def die(*_):
        raise Py4JNetworkError("Answer from Java side is empty")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "delete", die)
        with pytest.raises(Py4JNetworkError):  # an outage is no damage
            list(archiving().run(NOW))
    with pytest.raises(ArchiveFailed, match="its files are intact: run `archive` to complete it"):
        archiving().abandon()
    place = Path(lake.path)
    place.rename(place.with_name("away"))
    with pytest.raises(LakeUnusable):
        archiving().abandon()
    place.with_name("away").rename(place)
    assert ArchiveBatch.objects.get().state == ArchiveState.DELETING

    [done] = archiving().run(NOW)
    assert (done.deleted, ids(), archived(lake)) == (6, set(), [1, 2, 3, 4, 5, 6])


@ONE_STORE
def test_a_batch_that_an_older_version_left_half_deleted_is_not_withdrawn(archiving, lake):
    history(6)
    with pytest.raises(Killed):
        list(archiving(tell=die_at(ArchiveState.VERIFIED)).run(NOW))
    FinishedMessage.objects.filter(id__lte=3).delete()
    for file in parquet(lake)[:1]:
        truncate(file)

    given_up = archiving().abandon()

    assert ArchiveBatch.objects.get().state == ArchiveState.DELETED
    assert len(given_up.damaged) == 1
    assert len(archived(lake)) + len(ids()) + given_up.lost == 6


@ONE_STORE
def test_check_finds_rows_of_a_batch_that_was_given_up_in_neither(archiving, lake, told, settings):
    settings.DELAYEDQ = {"RETENTION": None}
    history(6)
    list(archiving().run(NOW))
    snapshot = lake.table.snapshot()
    assert lake.table.replace(snapshot, list(snapshot.files), [], withdrawn=1)
    ArchiveBatch.objects.update(state=ArchiveState.ABANDONED)

    assert checked(told) == ["  batch 1 was given up, and 6 of its 6 rows are in neither the table nor the lake"]


@ONE_STORE
def test_what_is_damaged_is_proven_from_its_bytes(archiving, lake):
    history(9)
    list(archiving().run(NOW))
    files = list(lake.table.snapshot().files)
    assert damaged(lake.table, files) == []
    flipped, gone, *_ = (Path(lake.path, file.path) for file in files)
    content = bytearray(flipped.read_bytes())
    content[-6] ^= 255  # in the length of the footer
    flipped.write_bytes(content)
    gone.unlink()

    assert {file.path for file in damaged(lake.table, files)} == {files[0].path, files[1].path}


@ONE_STORE
@pytest.mark.parametrize("beside", [True, False], ids=["with Hadoop's checksums", "without, as in S3"])
def test_a_single_wrong_bit_is_damage_wherever_it_is(archiving, lake, beside):
    """Spark refuses such a file; if nothing else did, its batch could be neither completed nor given up."""
    history(40, days=1)
    list(archiving().run(NOW))
    file = next(iter(lake.table.snapshot().files))
    path = Path(lake.path, file.path)
    content = path.read_bytes()
    if not beside:
        path.with_name(f".{path.name}.crc").unlink()
    right = pq.read_table(path)
    missed = []
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        if not damaged(lake.table, [file]) and (beside or pq.read_table(path) != right):
            missed.append(place)
    assert missed == []
