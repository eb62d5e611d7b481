"""The streaming reader: as a plain object, and on Spark."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from delayedq.exceptions import InvalidOption, PipelineError
from delayedq.models import FinishedMessage
from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.streaming import DelayedQDataSource
from tests.pipeline.queued import history
from tests.pipeline.streams import run_to_the_end
from tests.router import ChosenDatabase

HOURS = timedelta(hours=1)


class Stream:
    """What Spark does: a reader for the offsets, others in executors, and offsets that are written to a file."""

    def __init__(self, address, start=None, **options):
        source = DelayedQDataSource({"address": address.reference, **options})
        self.reader = source.streamReader(source.schema())
        self.offset = start or self.reader.initialOffset()

    def batch(self):
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, ReadAllAvailable())))
        start, self.offset = self.offset, end
        return [] if end == start else self.read(start, end)

    def read(self, start, end):
        away = pickle.loads(pickle.dumps(self.reader))
        batches = [batch for part in self.reader.partitions(start, end) for batch in away.read(part)]
        return sorted(id_ for batch in batches for id_ in batch.column("id").to_pylist())


@contextmanager
def late(alias, numbers):
    """A transaction that has recorded these ends, and commits at the end of the block."""

    def begin():
        transaction.set_autocommit(False, using=alias)
        with transaction.atomic(using=alias):  # a savepoint: its rows carry a number of their own
            history(numbers, finished_at=datetime.now(UTC) - HOURS)

    def commit():
        transaction.commit(using=alias)
        connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(begin).result()
        try:
            yield
        finally:
            thread.submit(commit).result()


def test_each_end_is_in_one_batch(address, store):
    stream = Stream(address, lateness="0")
    history(range(1, 400))

    assert stream.batch() == list(range(1, 400))
    assert stream.batch() == []
    stream = Stream(address, stream.offset, lateness="0")
    history([400], finished_at=datetime.now(UTC))
    assert stream.batch() == [400]
    assert stream.batch() == []


def test_a_batch_that_is_read_again_is_the_same(address, store):
    stream = Stream(address)
    history(range(1, 10))
    start = stream.offset

    stream.batch()
    history(range(10, 20), finished_at=datetime.now(UTC) - timedelta(seconds=1))

    assert stream.read(start, stream.offset) == list(range(1, 10))


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_is_committed_late_is_not_missed(alias, address, store):
    """Ids and times of the late ones lie among those that were read before."""
    stream = Stream(address)
    seen = []
    with late(alias, range(1, 10)):
        history(range(10, 20), finished_at=datetime.now(UTC))
        seen.append(stream.batch())
        history(range(20, 30), finished_at=datetime.now(UTC))
        seen.append(stream.batch())
    history(range(30, 40), finished_at=datetime.now(UTC))
    seen.append(stream.batch())
    seen.append(stream.batch())

    assert sorted(id_ for batch in seen for id_ in batch) == list(range(1, 40))
    assert seen == [[], [], list(range(1, 40)), []]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_an_open_transaction_that_began_after_a_batch_is_waited_for_too(alias, address, store):
    stream = Stream(address)
    history([1])
    assert stream.batch() == [1]
    with late(alias, [2]):
        history([3])
        assert stream.batch() == []
    assert stream.batch() == [2, 3]


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_without_numbers_of_transactions_the_oldest_open_one_bounds_the_stream(alias, address, store):
    stream = Stream(address, lateness="0")
    history([1], finished_at=datetime.now(UTC) - 2 * HOURS)
    with late(alias, [2]):
        history([3], finished_at=datetime.now(UTC) + timedelta(milliseconds=1))
        assert stream.batch() == [1]
    assert Stream(address, lateness="0").batch()[:2] == [1, 2]


@pytest.mark.parametrize("alias", ["sqlite", "mariadb"], indirect=True)
def test_by_time_a_stream_keeps_its_distance(address, store):
    stream = Stream(address, lateness="3600")
    history([1], finished_at=datetime.now(UTC) - 2 * HOURS)
    history([2], finished_at=datetime.now(UTC) - HOURS / 2)

    assert stream.batch() == [1]
    assert Stream(address, stream.offset, lateness="60").batch() == [2]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_later_batch_reads_no_old_history(alias, address, store):
    """What is recorded more than `lateness` after its end, and after the batch before last, is left out."""
    stream = Stream(address, lateness="60")
    for number in (1, 2, 3):
        history([number], finished_at=datetime.now(UTC))
        assert stream.batch() == [number]
    history([4], finished_at=datetime.now(UTC) - HOURS)

    assert stream.batch() == []


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_checkpoint_of_another_database_is_refused(address, store):
    stream = Stream(address)
    stream.offset |= {"settled": 2**40}

    with pytest.raises(PipelineError, match="another database"):
        stream.batch()


def test_options_select_from_a_stream(address, store):
    history([1])
    history([2], outcome="failed")
    history([3], outcome="failed", kind="app.tasks.post")

    assert Stream(address, states="failed", kinds="app.tasks.send").batch() == [2]


@pytest.mark.parametrize("option", [{"states": "waiting"}, {"snapshot": "0001-01-1"}])
def test_a_stream_is_of_what_has_ended(address, store, option):
    with pytest.raises(InvalidOption, match=next(iter(option))):
        Stream(address, **option)


def test_a_partition_that_is_not_ours_is_empty(address, store):
    assert list(Stream(address).reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("alias", ["postgresql", "sqlite"], indirect=True)
def test_a_stream_goes_on_from_its_checkpoint(spark, address, store, tmp_path):
    register(spark)

    def run():
        options = {"address": address.reference, "columns": "id,state", "lateness": "0"}
        frame = spark.readStream.format("delayedq").options(**options).load()
        sink = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_the_end(sink, tmp_path / "lake")
        return sorted(row.id for row in spark.read.schema("id long").parquet(str(tmp_path / "lake")).collect())

    history(range(1, 100))
    assert run() == list(range(1, 100))
    history(range(100, 110), finished_at=datetime.now(UTC))
    assert run() == list(range(1, 110))
    assert run() == list(range(1, 110))
    assert FinishedMessage.objects.using(ChosenDatabase.alias).count() == 109
