"""What the archive has written runs again with the code of today: `delayedq.testing.replay` reads a lake."""

from __future__ import annotations

import json

import pytest

from delayedq.models import FinishedMessage
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.spark.measuring import measured
from delayedq.testing import clock, replay, run_due
from delayedq.testing.replay import open_history
from tests.app import tasks
from tests.pipeline.given import DAY, NOW

#: A lake is the same whatever its database was.
pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def lake(spark, store, address, tmp_path):
    """A lake that holds the ends of three messages of two days; the database holds none any more."""
    with clock(NOW - 3 * DAY) as now:
        tasks.remind.enqueue(7, gate="B7")
        run_due()
        now.advance(DAY)
        tasks.echo.using(metadata={"team": "gate"}).schedule_at(now(), now(), key="é")
        tasks.fail.using(max_attempts=1).enqueue("no fuel")
        run_due(raise_failures=False)
    lake = Lake(spark, str(tmp_path / "lake"))
    list(Archiving(spark, store, address, lake.path, here=address).run(NOW))
    assert not FinishedMessage.objects.exists()
    return lake


def test_a_lake_and_its_parts_run_again(alias, lake, tmp_path):
    report = replay(lake.path)
    assert report, str(report)
    assert report.same == 3
    files = sorted((tmp_path / "lake" / "messages").rglob("*.parquet"))
    assert sum(replay(file).same for file in files) == 3
    days = sorted((tmp_path / "lake" / "messages").glob("*/day=*"))
    assert [replay(day).same for day in days] == [1, 2]


def test_each_column_is_read(alias, lake):
    read = {ended.kind.rpartition(".")[2]: ended for ended in open_history(lake.path).rows()}
    echo, fail = read["echo"], read["fail"]
    assert (echo.outcome, echo.key, echo.metadata, echo.attempts) == ("succeeded", "é", '{"team":"gate"}', 1)
    at = NOW - 2 * DAY
    assert (echo.scheduled_at, echo.scheduled_at_initially, echo.created_at, echo.started_at) == (at, at, at, at)
    assert (fail.outcome, fail.last_error, fail.max_attempts) == ("failed", "builtins.ValueError", 1)
    assert json.loads(fail.payload) == {"args": ["no fuel"]}


def test_only_what_is_published_counts(alias, lake):
    """Beside it, what an attempt wrote that was not published, and what a compaction has replaced."""
    snapshot = lake.table.snapshot()
    lake.write("stray-1", lake.history())
    assert replay(lake.path).same == 3
    lake.write("compact-1", lake.history())
    assert lake.table.replace(snapshot, list(snapshot.files), measured(lake.files("messages/compact-1")).files)
    assert replay(lake.path).same == 3
