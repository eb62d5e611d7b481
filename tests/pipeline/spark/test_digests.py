"""Spark and each database tell the same of a row, whatever it holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from delayedq.core.masking import MASKED
from delayedq.models import FinishedMessage
from delayedq.pipeline.spark.connecting import connect
from delayedq.pipeline.spark.digests import digest, digest_in_sql, masks
from tests.pipeline.given import NOW, finished

pytestmark = pytest.mark.spark

ODD = ["", "é", "\U0001f600", "a,b", "-", " end ", "'\"\\%s %%", '"\\u0000 \\ud800"', "x" * 70_000, "\r\n\t"]


def rows():
    yield finished(1)
    yield finished(2, key="k", metadata='{"a": 1}', result=None, errors="[]", worker=None, started_at=None)
    yield finished(3, datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC))
    yield finished(4, NOW, created_at=NOW - timedelta(microseconds=1), priority=-32_768, attempts=0)
    for number, text in enumerate(ODD):
        yield finished(10 + number, payload=text, result=text, errors=text, worker=text[:100], key=text[:100])


def test_spark_and_the_database_tell_the_same_of_each_row(spark, store, address, alias):
    from delayedq.pipeline.spark.archive import Copying, history

    FinishedMessage.objects.bulk_create(rows())
    copying = Copying(spark, address, None, None, NOW + timedelta(days=9), None, here=address)
    read = history(copying, None).select("id", digest().alias("digest"), masks([]).alias("masks")).collect()
    with connect(address) as connection:
        told = digest_in_sql(connection.vendor, "0")
        stored = connection.rows(f"SELECT id, {told} FROM delayedq_finishedmessage AS finished")
    assert dict(stored) == {row.id: row.digest for row in read}
    assert len({row.digest for row in read}) == len(read) == len(stored)
    assert {row.masks for row in read} == {0}


def test_what_is_masked_in_the_lake_is_masked_in_the_table_too(spark, store, address, alias):
    from delayedq.pipeline.spark.archive import Copying, history

    FinishedMessage.objects.bulk_create([finished(1), finished(2, result=None)])
    kinds = [finished(1).kind]
    copying = Copying(spark, address, None, None, NOW + timedelta(days=9), None, here=address, masked=kinds)
    read = (
        history(copying, None).select("id", "payload", digest().alias("digest"), masks(kinds).alias("masks")).collect()
    )
    assert {row.payload for row in read} == {MASKED}
    assert {row.id: row.masks for row in read} == {1: 3, 2: 1}
    with connect(address) as connection:
        for row in read:
            told = digest_in_sql(connection.vendor, str(row.masks))
            found = connection.rows(
                f"SELECT {told} FROM delayedq_finishedmessage AS finished WHERE id = %(id)s", {"id": row.id}
            )
            assert found == [(row.digest,)]
