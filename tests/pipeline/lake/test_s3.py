"""A lake in an object store: moto's S3 server, a process of its own on this machine. pyarrow writes the files."""

from __future__ import annotations

import threading

import pytest

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.table import LakeTable
from tests.pipeline.lake.engines import polars
from tests.pipeline.lake.files import ids, publish, row, write
from tests.pipeline.lake.s3 import bucket, options_of, serving


@pytest.fixture(scope="module")
def endpoint():
    with serving() as url:
        yield url


@pytest.fixture
def options(endpoint):
    return options_of(endpoint)


@pytest.fixture
def table(endpoint, options, request):
    return LakeTable(f"{bucket(endpoint, f'b{abs(hash(request.node.name))}')}/lake", options)


def test_a_lake_is_made_written_read_compacted_and_cleaned(table, options):
    assert table.check() is False
    table.create()
    publish(table, 1, [row(1), row(2)])
    publish(table, 2, [row(3)])
    write(table, "stray", [row(9)])
    assert ids(table) == [1, 2, 3]
    assert polars(table.path, **options) == [1, 2, 3]

    snapshot = table.snapshot()
    assert table.replace(snapshot, list(snapshot.files), write(table, "c", [row(1), row(2), row(3)]))
    assert ids(table, id=[2]) == [2]
    assert len(table.stored("messages")) == 4
    table.delete(["messages/stray/day=2026-02-28/part-0.parquet"])
    assert ids(table) == [1, 2, 3]


def test_of_writers_at_once_that_saw_the_same_version_one_publishes(table):
    """The commit is a PUT that fails if the object is there (If-None-Match)."""
    table.create()
    for number in (1, 2, 3):
        snapshot, outcomes = table.snapshot(), []
        files = [write(table, f"{number}-{name}", [row(number)]) for name in "abcd"]
        barrier = threading.Barrier(len(files))

        def race(written, snapshot=snapshot, number=number, outcomes=outcomes, barrier=barrier):
            barrier.wait()
            outcomes.append(table.publish(snapshot, "app", number, written))

        threads = [threading.Thread(target=race, args=(written,)) for written in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [False, False, False, True]
    assert ids(table) == [1, 2, 3]


def test_of_two_that_make_it_at_once_one_does(table):
    threads = [threading.Thread(target=table.create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.snapshot().version == 0


def test_a_store_that_is_away_is_one_sentence(options):
    gone = options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    away = LakeTable("s3://bucket/lake", gone | {"max_retries": "0", "connect_timeout": "1 seconds"})
    with pytest.raises(LakeUnusable, match="s3://bucket/lake can't be used") as failed:
        away.snapshot()
    assert "\n" not in str(failed.value)
