"""The day of a message is that of its end in UTC, whatever the zone of the session is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delayedq.exceptions import LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.lake.table import MESSAGES
from delayedq.pipeline.spark.compacting import compact
from delayedq.pipeline.spark.session import SEMANTICS, spark_session
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import NOW, finished

#: Thirteen hours before UTC to five after it: nearly every row has another day somewhere.
FIRST = datetime(2026, 2, 20, tzinfo=UTC)
OTHERS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.parquet.compression.codec": "snappy",
}


@pytest.fixture(params=["Pacific/Apia", "America/New_York", "UTC"])
def elsewhere(request, spark):
    """The session of a caller, with settings of their own."""
    chosen = {"spark.sql.session.timeZone": request.param} | OTHERS
    before = {name: spark.conf.get(name) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    yield chosen
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def moved(archiving, lake):
    """Two batches, each with an end in every hour of two days; returns by id the right day."""
    ends = {number: FIRST + timedelta(hours=number) for number in range(48)}
    for part in (0, 1):
        FinishedMessage.objects.bulk_create(finished(id_, when) for id_, when in ends.items() if id_ % 2 == part)
        list(archiving().run(NOW))
    return {id_: when.date() for id_, when in ends.items()}


def days(lake):
    return {row.id: row.day for row in lake.history().select("id", "day").collect()}


@ONE_STORE
def test_rows_and_compacted_files_keep_their_day_and_the_session_its_settings(moved, lake, elsewhere, spark):
    assert days(lake) == moved
    [done] = compact(lake)

    assert (done.before, done.after, done.rows) == (4, 2, 48)
    assert days(lake) == moved
    assert [(file.day, file.rows) for file in sorted(lake.table.snapshot().files, key=lambda file: file.day)] == [
        (FIRST.date(), 24),
        (FIRST.date() + timedelta(days=1), 24),
    ]
    assert {name: spark.conf.get(name) for name in elsewhere} == elsewhere


def test_a_command_in_a_session_of_the_callers_leaves_its_settings(elsewhere, spark):
    with spark_session() as ours:
        assert {name: ours.conf.get(name) for name in SEMANTICS} == SEMANTICS
    assert {name: spark.conf.get(name) for name in elsewhere} == elsewhere


@ONE_STORE
def test_an_archive_in_such_a_session_writes_each_day_where_it_belongs(elsewhere, moved, lake):
    assert days(lake) == moved


@ONE_STORE
def test_a_compaction_notices_rows_in_the_directory_of_another_day(moved, lake):
    """As a former compaction may have left them."""
    snapshot = lake.table.snapshot()
    wrong = {FIRST.date(): "2026-02-21", FIRST.date() + timedelta(days=1): "2026-02-20"}
    renamed = []
    for number, file in enumerate(snapshot.files):
        path = f"{MESSAGES}/wrong-{number}/day={wrong[file.day]}/part.parquet"
        Path(lake.path, path).parent.mkdir(parents=True)
        Path(lake.path, file.path).rename(Path(lake.path, path))
        renamed.append(file._replace(path=path, day=datetime.fromisoformat(wrong[file.day]).date()))
    assert lake.table.replace(snapshot, list(snapshot.files), renamed)

    with pytest.raises(LakeUnusable, match="hold messages that ended on"):
        list(compact(lake))
    assert {file.path for file in lake.table.snapshot().files} == {file.path for file in renamed}
