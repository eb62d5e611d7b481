"""Spark reads the lake as a table that is partitioned by day: it opens no file that a query does not want."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from deltalake import DeltaTable

from delayedq.pipeline.lake.damage import damaged
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.spark.compacting import compact
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.spark.measuring import measured
from tests.pipeline.lake.files import ids, publish, row

#: An end in every third hour: most have another day in some zone.
ENDS = {id_: datetime(2026, 2, 20, tzinfo=UTC) + timedelta(hours=3 * id_) for id_ in range(32)}
DAYS = {id_: end.date() for id_, end in ENDS.items()}
BATCHES = 3


def filled(path):
    """Four days, with a file of each of three batches."""
    table = LakeTable(str(path))
    table.create()
    for number in range(BATCHES):
        publish(table, number + 1, [row(id_, finished_at=ENDS[id_]) for id_ in ENDS if id_ % BATCHES == number])
    return table


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, filled(tmp_path / "lake").path)


@pytest.fixture(params=["Pacific/Apia", "America/New_York", "UTC"])
def zone(request, spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def scanned(rows):
    """The files that Spark opened for these rows, once they were read, and the filters by which it chose them."""
    scan = rows._jdf.queryExecution().executedPlan().collectLeaves().head()
    filters = re.search(r"PartitionFilters: \[(.*?)\], PushedFilters", scan.toString())[1]
    return scan.metrics().apply("numFiles").value(), re.sub(r"#\d+", "", filters)


@pytest.mark.parametrize(
    ("condition", "days", "filters"),
    [
        ("day >= '2026-02-22'", {22, 23}, "isnotnull(day), (day >= 2026-02-22)"),
        ("day >= date'2026-02-22'", {22, 23}, "isnotnull(day), (day >= 2026-02-22)"),
        ("day IN ('2026-02-20', '2026-02-23')", {20, 23}, "day IN (2026-02-20,2026-02-23)"),
        ("day(day) = 21", {21}, "isnotnull(day), (day(day) = 21)"),
        ("day IS NULL", set(), "isnull(day)"),
    ],
)
def test_a_condition_on_the_day_skips_the_files_of_other_days(lake, zone, condition, days, filters):
    rows = lake.history().where(condition)
    wanted = {id_: day for id_, day in DAYS.items() if day.day in days}
    assert {one.id: one.day for one in rows.collect()} == wanted
    assert scanned(rows) == (BATCHES * len(days), filters)


def test_each_row_keeps_the_day_of_its_directory(lake, zone):
    assert {one.id: one.day for one in lake.history().collect()} == DAYS
    since, until = date(2026, 2, 21), date(2026, 2, 23)
    some = {one.id: one.day for one in lake.history(since, until).collect()}
    assert some == {id_: day for id_, day in DAYS.items() if since <= day < until}


def test_conditions_in_sql_on_the_view_of_a_lake_skip_files_too(lake, spark):
    lake.history().createOrReplaceTempView("messages")
    rows = spark.sql("SELECT id FROM messages WHERE day = '2026-02-21' AND state = 'succeeded'")
    assert len(rows.collect()) == 8
    assert scanned(rows) == (BATCHES, "isnotnull(day), (day = 2026-02-21)")


@pytest.mark.parametrize("name", ["with space", "a[b]", "a{b,c}", "a*b?", "day=2020-01-01", "Zoë#1"])
def test_a_lake_may_have_any_name(spark, tmp_path, name):
    lake = Lake(spark, filled(tmp_path / name).path)
    assert {one.id: one.day for one in lake.history().collect()} == DAYS
    assert sum(done.rows for done in compact(lake)) == len(DAYS)
    assert {one.id: one.day for one in lake.history().collect()} == DAYS


def test_a_table_that_another_engine_compacted_is_ours_still(lake):
    """`optimize` of delta-rs puts its files beside ours."""
    DeltaTable(lake.path).optimize.compact()
    files = lake.table.snapshot().files

    assert [file.path for file in files if not file.path.startswith("day=")] == []
    assert {one.id: one.day for one in lake.history().collect()} == DAYS
    assert damaged(lake.table, files) == []
    found = measured(lake.files(*(file.path for file in files))).files
    assert {(file.path, file.rows, file.size) for file in found} == {
        (file.path, file.rows, file.size) for file in files
    }

    publish(lake.table, BATCHES + 1, [row(100, finished_at=ENDS[0])])
    assert [done.before for done in compact(lake)] == [2]
    assert ids(lake.table) == [*DAYS, 100]
    old = {info.path for info in lake.table.unneeded(datetime.now(UTC) + timedelta(days=1))}
    assert {path for path in old if path.startswith("day=2026-02-20")}
    assert old.isdisjoint(file.path for file in lake.table.snapshot().files)
