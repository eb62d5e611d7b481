"""Polars, DuckDB and pandas read exactly what is published, whatever else lies in the directory."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from delayedq.pipeline.lake.columns import COLUMNS
from delayedq.pipeline.lake.rows import WantedRows, read
from tests.pipeline.lake.engines import ENGINES, asked, read_by_all
from tests.pipeline.lake.files import NOON, ids, publish, row, write

ENGINE = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)


@ENGINE
def test_what_is_not_published_or_was_replaced_is_not_read(table, engine):
    assert engine(table.path) == []
    publish(table, 1, [row(1, key="Zoë 'x'"), row(2)])
    write(table, "stray-1", [row(9)])
    publish(table, 1, [row(7)], "shop")
    assert engine(table.path) == [1, 2, 7]

    snapshot = table.snapshot()
    assert table.replace(snapshot, list(snapshot.files), write(table, "compact", [row(1), row(2), row(7)]))
    assert engine(table.path) == [1, 2, 7]
    newest = table.snapshot()
    assert table.replace(newest, list(newest.files), [])
    assert engine(table.path) == []


def test_each_column_has_the_type_that_it_says(table):
    publish(table, 1, [row(1, priority=-3, errors="[]", key="Zoë 'x'\n")])
    frame = pl.read_delta(table.path)
    assert frame.columns == list(COLUMNS)
    [found] = frame.to_dicts()
    assert (found["id"], found["priority"], found["key"], found["errors"]) == (1, -3, "Zoë 'x'\n", "[]")
    assert (found["day"], found["metadata"]) == (NOON.date(), None)
    assert frame.schema["finished_at"] == pl.Datetime("us", "UTC")


def test_a_column_that_an_older_writer_did_not_know_is_null(table):
    table.publish(table.snapshot(), "app", 1, write(table, "old", [row(1, errors="[]")], without=["errors"]))
    publish(table, 2, [row(2, errors="[]")])
    assert read_by_all(table.path) == [1, 2]
    assert pl.read_delta(table.path).sort("id")["errors"].to_list() == [None, "[]"]
    found = pa.concat_tables(read(table, table.snapshot().files, WantedRows())).sort_by("id")
    assert found.column("errors").to_pylist() == [None, "[]"]


def test_after_many_commits_and_a_checkpoint_they_read_the_same(table):
    for number in range(1, 46):
        publish(table, number, [row(number)])
    assert read_by_all(table.path) == list(range(1, 46))
    assert table.snapshot().row_count == 45
    assert table.snapshot().last("app") == 45


def test_what_its_log_says_is_what_any_reader_of_delta_understands(table):
    """The first protocol with no features, as Delta Lake for Spark reads it, which no registry has."""
    publish(table, 1, [row(1), row(2, finished_at=NOON - timedelta(days=3))])
    snapshot = table.snapshot()
    assert table.replace(snapshot, list(snapshot.files), write(table, "compact", [row(1), row(2)]))
    log = sorted(Path(table.path, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    (protocol,) = [action["protocol"] for action in actions if "protocol" in action]
    assert protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    assert (metadata["format"]["provider"], metadata["partitionColumns"]) == ("parquet", ["day"])
    fields = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    assert set(fields) == set(COLUMNS)
    assert {type(field["type"]) for field in fields.values()} == {str}  # none is nested
    for added in (action["add"] for action in actions if "add" in action):
        assert not Path(added["path"]).is_absolute()
        assert Path(table.path, unquote(added["path"])).stat().st_size == added["size"]
        assert list(map(type, added["partitionValues"].values())) == [str]
        assert date.fromisoformat(added["partitionValues"]["day"])
        assert json.loads(added["stats"])["numRecords"] > 0


# What they need not read


SINCE = NOON.date()
#: By engine: how it counts the rows of these days.
COUNTS = {
    "polars": lambda path: pl.scan_delta(path).filter(pl.col("day") >= SINCE).collect().height,
    "polars by time": lambda path: (
        pl.scan_delta(path).filter(pl.col("finished_at") >= NOON - timedelta(hours=12)).collect().height
    ),
    "duckdb": lambda path: asked(f"SELECT count(*) FROM delta_scan(?) WHERE day >= '{SINCE}'", path)[0][0],
    "pandas": lambda path: len(DeltaTable(path).to_pandas(filters=[("day", ">=", SINCE)])),
    "delta-rs": lambda path: (
        QueryBuilder()
        .register("lake", DeltaTable(path))
        .execute(f"SELECT id FROM lake WHERE day >= '{SINCE}'")
        .read_all()
        .num_rows
    ),
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_condition_on_the_day_opens_no_file_of_another_day(table, count):
    """The files of the other days are gone."""
    publish(table, 1, [row(id_, finished_at=NOON + timedelta(days=id_)) for id_ in range(-3, 3)])
    for file in table.snapshot().files:
        if file.day < SINCE:
            Path(table.path, file.path).unlink()
    assert count(table.path) == 3


# Compactions by others


def test_a_table_that_another_engine_compacted_is_read_by_all(table):
    for number in range(1, 4):
        publish(table, number, [row(number), row(number + 10, finished_at=NOON + timedelta(days=1))])
    DeltaTable(table.path).optimize.compact()

    assert len(table.snapshot().files) == 2
    assert ids(table) == read_by_all(table.path) == [1, 2, 3, 11, 12, 13]


def test_two_compactions_of_delta_rs_at_once_double_rows(table):
    """That is why we compact with Spark. Once they don't, `spark/compacting.py` needs no rewriting of its own."""
    for number in range(1, 4):
        publish(table, number, [row(number)])
    first, second = DeltaTable(table.path), DeltaTable(table.path)
    first.optimize.compact()
    second.optimize.compact()
    assert read_by_all(table.path) == [1, 1, 2, 2, 3, 3]
