"""Rows, files and checkpoints that others have written, on Spark: what is right counts, the rest is named."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet
from pyspark.errors import StreamingQueryException

from delayedq.history import read
from delayedq.models import FinishedMessage
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.report.tables import measure, span
from delayedq.pipeline.spark import register
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import history
from tests.pipeline.lake.files import publish, row
from tests.pipeline.report.histories import NOON, after, ended, frame
from tests.pipeline.streams import PATIENCE

TIMES = (
    "", "now", "-infinity", "2013-03-10T12:00:02+99:99", "294247-12-31T00:00:00Z", "-290308-01-01T00:00:00Z", "9" * 30,
    "0000-00-00", "2013-02-30T00:00:00", "\x00",
)  # fmt: skip
SECONDS = ("Infinity", "-Infinity", "NaN", "1e999", "-1e308", "1e308", '"x"', "{}", "[]", "-5", "9" * 400, "true")
ERRORS = (
    *(f'[{{"attempt":1,"failed_at":"2013-03-10T12:00:02Z","seconds":{text},"exception":"a.B"}}]' for text in SECONDS),
    *(json.dumps([{"attempt": 1, "failed_at": text, "seconds": 1.0, "exception": "app.Bad"}]) for text in TIMES),
    *(f'[{{"attempt":{text},"failed_at":"2013-03-10T12:00:02Z","seconds":1}}]' for text in SECONDS),
    '[{"attempt":1,"failed_at":7,"seconds":1,"exception":{"a":[]}}]',
    "[" * 9_000, "[[[]]]", "[null]", "7", '"x"', "{}", '{"attempt":1}', "\ufeff[]", '[{"attempt":1}', "",
)  # fmt: skip
METADATA = (
    *(json.dumps({"cron": {"schedule": "s", "nominal_at": text}}) for text in TIMES),
    '{"cron":7}', '{"cron":{"schedule":[],"nominal_at":{}}}', '"cron"', "[" * 9_000,
)  # fmt: skip
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
OTHERS = (
    {"attempts": -(2**15)}, {"attempts": 2**15 - 1}, {"attempts": 0}, {"priority": -(2**15)}, {"kind": "<script>"},
    {"queue": ""}, {"state": "leased"}, {"state": "\x00"}, {"created_at": FIRST}, {"created_at": LAST},
    {"scheduled_at": FIRST}, {"scheduled_at": LAST}, {"scheduled_at_initially": LAST}, {"started_at": FIRST},
    {"started_at": LAST}, {"finished_at": LAST, "started_at": FIRST}, {"finished_at": FIRST},
)  # fmt: skip
SANE = [ended(1, 3, id=number, kind="app.sane") for number in range(5)]


def hostile():
    rows = [ended(0.5, 2.5, state="failed", errors=text, kind="app.bad") for text in ERRORS]
    rows += [ended(metadata=text, kind="app.bad") for text in METADATA]
    rows += [ended(**{"kind": "app.bad"} | columns) for columns in OTHERS]
    return [one | {"id": 100 + number} for number, one in enumerate(rows)]


def test_a_report_on_hostile_rows_says_of_the_others_what_it_says_without_them(spark):
    figures = measure(frame(spark, *SANE, *hostile()), NOON, after(60))
    alone = measure(frame(spark, *SANE), NOON, after(60))
    names = [name for name, rows in figures.tables.items() if "kind" in rows.column_names]
    assert len(names) > 2
    assert {name: of_sane(figures, name) for name in names} == {name: of_sane(alone, name) for name in names}


def of_sane(figures, name):
    return [one for one in figures.rows(name) if one["kind"] == "app.sane"]


def test_no_attempt_takes_infinitely_long(spark):
    figures = measure(frame(spark, *hostile()), NOON, after(60))
    numbers = [
        value
        for table in figures.tables.values()
        for one in table.to_pylist()
        for value in one.values()
        if isinstance(value, float)
    ]
    assert numbers
    assert all(map(isfinite, numbers))


def test_the_span_of_hostile_rows_is_one_that_can_be_shown(spark):
    first, last = span(frame(spark, *SANE, *hostile()))
    assert first <= NOON <= last


@ONE_STORE
def test_a_file_of_other_columns_is_one_sentence(spark, store, tmp_path):
    table = LakeTable(str(tmp_path / "lake"))
    table.create()
    publish(table, 1, [row(1)], "app")
    [file] = Path(table.path).rglob("*.parquet")
    parquet.write_table(pa.table({"id": ["x"], "finished_at": [7], "state": [[1]]}), file)
    with pytest.raises(CommandError, match=r"The report failed: .*\. Nothing was changed"):
        call_command("run_pipeline", "report", "--only-lake", "--lake", table.path, "--output", f"{table.path}-report")


@ONE_STORE
def test_a_value_of_another_type_in_sqlite_names_its_column(spark, store, address, connection):
    history(2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayedq_finishedmessage SET priority = 'high' WHERE id = 1")
    register(spark)
    with pytest.raises(Exception, match="has a value in 'priority' that can't be read as int16: it is of the type str"):
        spark.read.format("delayedq").option("address", address.reference).load().collect()


@ONE_STORE
def test_bytes_among_the_texts_of_sqlite_are_archived_as_texts(spark, store, connection, tmp_path):
    """A column of texts holds what it is given there: the batch could be published, and its rows not be deleted."""
    history(2)
    before = dict(FinishedMessage.objects.values_list("id", "payload"))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayedq_finishedmessage SET payload = CAST(payload AS BLOB) WHERE id = 1")
    lake = str(tmp_path / "lake")
    call_command("run_pipeline", "archive", "--older-than", "0s", "--lake", lake)
    assert not FinishedMessage.objects.exists()
    rows = read(lake=lake, columns=["id", "payload"]).to_pylist()
    assert {one["id"]: one["payload"] for one in rows} == before


@ONE_STORE
def test_a_checkpoint_of_another_database_is_one_sentence(spark, store, address, tmp_path):
    register(spark)
    checkpoint = tmp_path / "checkpoint"

    def run():
        options = {"address": address.reference, "columns": "id", "lateness": "0"}
        frame = spark.readStream.format("delayedq").options(**options).load()
        sink = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    FinishedMessage.objects.all().delete()
    history(2, days=1)
    run()
    [offsets] = (checkpoint / "offsets").glob("[0-9]*")
    *head, _ = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*head, json.dumps({"settled": 7, "moment": "x"})]))
    (checkpoint / "offsets" / f".{offsets.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="was not written by a stream of such a database"):
        run()
