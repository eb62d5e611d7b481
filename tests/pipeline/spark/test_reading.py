"""The batch reader as a plain object: no Spark."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pyarrow as pa
import pytest
from django.db import connections
from django.utils import timezone
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.exceptions import DatabaseUnreachable, InvalidOption, SnapshotGone
from delayedq.models import FinishedMessage, LockedRenewal, Message
from delayedq.pipeline.spark import reading
from delayedq.pipeline.spark.reading import MessageReader, read_here, snapshot
from delayedq.pipeline.spark.schema import MESSAGES
from delayedq.pipeline.spark.streaming import DelayedQDataSource
from tests.pipeline.queued import NOON, history, live_messages


def reader(options, **others):
    source = DelayedQDataSource({**options, **{name: str(value) for name, value in others.items()}})
    return pickle.loads(pickle.dumps(source.reader(source.schema())))


def rows(given, partitions=None):
    """All that it reads, each partition in turn, as dicts sorted by id."""
    found = [batch for span in partitions or given.partitions() for batch in given.read(span)]
    return sorted(pa.Table.from_batches(found, schema=schema_of(given)).to_pylist(), key=lambda row: row["id"])


def schema_of(given):
    return to_arrow_schema(given.schema, timezone="UTC")


def test_history_is_read_as_it_was_written(address, store):
    history(range(1, 12), errors='[{"attempt": 1}]')

    found = rows(reader({"address": address.reference}))

    apart = {"outcome", "error", "fingerprint"}  # the state, and what follows from the errors
    expected = [
        {**{name: value for name, value in row.items() if name not in apart}, "state": row["outcome"]}
        for row in FinishedMessage.objects.order_by("id").values()
    ]
    assert found == expected
    assert list(found[0]) != sorted(found[0])
    assert found[0]["finished_at"] == NOON + timedelta(seconds=1)


def test_the_first_batch_has_exactly_the_schema_that_spark_expects(address, store):
    history([1])
    given = reader({"address": address.reference})

    batch = next(given.read(given.partitions()[0]))

    assert batch.schema.equals(to_arrow_schema(MESSAGES, timezone="UTC"))


def test_live_messages_are_leased_or_waiting(address, store):
    live_messages(store)

    found = {row["key"]: row for row in rows(reader({"address": address.reference}))}

    assert {key: (row["state"], row["worker"], row["attempts"]) for key, row in found.items()} == {
        "leased": ("leased", "host:2", 1),
        "expired": ("waiting", None, 1),
        "waiting": ("waiting", None, 0),
    }
    assert {row["finished_at"] for row in found.values()} == {None}
    assert found["waiting"]["scheduled_at"] == Message.objects.get(key="waiting").scheduled_at


def test_a_lease_that_is_renewed_beside_its_locked_row_holds(address, store):
    live_messages(store)
    ran_out = Message.objects.get(key="expired")
    over = timezone.now() + timedelta(minutes=1)
    LockedRenewal.objects.create(message_id=ran_out.pk, lease_token=ran_out.lease_token, leased_until=over)
    waiting = Message.objects.get(key="waiting")
    LockedRenewal.objects.create(message_id=waiting.pk, lease_token=7, leased_until=over)  # of a lease that is gone

    found = {row["key"]: row for row in rows(reader({"address": address.reference}))}

    assert {key: row["state"] for key, row in found.items()} == {
        "leased": "leased",
        "expired": "leased",
        "waiting": "waiting",
    }
    assert {row["key"] for row in rows(reader({"address": address.reference, "states": "waiting"}))} == {"waiting"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"states": "failed"}, {2}),
        ({"states": "succeeded, failed"}, {1, 2, 3, 4}),
        ({"kinds": "app.tasks.send"}, {1, 2}),
        ({"kinds": '["a, b", "app.tasks.send"]'}, {1, 2, 3}),
        ({"queues": "post"}, {4}),
        ({"since": "2026-03-08T07:00:02Z"}, {2, 3, 4}),
        ({"until": "2026-03-08T03:00:03-04:00"}, {1, 2}),
        ({"since": "2026-03-08T07:00:02Z", "until": "2026-03-08T07:00:04Z", "kinds": "app.tasks.send"}, {2}),
        ({"kinds": "'; DROP TABLE delayedq_message; --"}, set()),
    ],
)
def test_options_select(address, store, options, expected):
    history([1])
    history([2], outcome="failed")
    history([3], kind="a, b")
    history([4], kind="app.tasks.post", queue="post")

    assert {row["id"] for row in rows(reader({"address": address.reference}, **options))} == expected


def test_a_window_leaves_what_has_not_ended_in(address, store):
    live_messages(store)
    history([1])

    found = rows(reader({"address": address.reference, "since": "2027-01-01T00:00Z"}))

    assert {row["state"] for row in found} == {"waiting", "leased"}


def test_columns_come_in_the_order_that_was_asked_for(address, store):
    history([1])

    assert [list(row.items()) for row in rows(reader({"address": address.reference}, columns="state,id"))] == [
        [("state", "succeeded"), ("id", 1)]
    ]


def test_an_empty_queue_gives_nothing(address, store):
    with snapshot(address) as options:
        assert rows(reader(options)) == []


def test_a_partition_that_is_not_ours_is_empty(address, store):
    """Spark asks for one with the value None when there are none."""
    assert list(reader({"address": address.reference}).read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("states", "done"),
        ("columns", "id,colour"),
        ("since", "yesterday"),
        ("since", "2026-03-08T07:00:00"),
        ("kinds", '["a", 1]'),
        ("partitions", "0"),
        ("partitions", "many"),
        ("snapshot", "'; DROP TABLE delayedq_message; --"),
        ("stats", "failed"),
    ],
)
def test_a_wrong_option_is_named(option, value):
    with pytest.raises(InvalidOption, match=option):
        reader({"address": "env:NOTHING"}, **{option: value})


def test_an_address_must_be_given():
    with pytest.raises(InvalidOption, match="address: missing"):
        reader({})


def test_the_reader_takes_no_filters_from_spark():
    """Spark 4.3 gives rows that were filtered for one query to another."""
    assert MessageReader.pushFilters is DataSourceReader.pushFilters


# One snapshot


def test_the_ranges_of_a_snapshot_cover_each_row_once(address, store):
    history(range(1, 1000))
    history([10**9], outcome="failed")
    live_messages(store)

    with snapshot(address) as options:
        given = reader(options, partitions=4)
        spans = given.partitions()
        counts = [sum(batch.num_rows for batch in given.read(span)) for span in spans]

    assert sum(counts) == 1003
    if address.vendor == "postgresql":
        assert len(spans) == 4
        assert max(counts) < 400


def test_what_happens_after_the_snapshot_is_not_seen(address, store):
    history(range(1, 500))

    with snapshot(address) as options:
        given = reader(options, partitions=4)
        if address.vendor == "postgresql":
            FinishedMessage.objects.filter(id__lt=100).delete()
        spans = given.partitions()
        if address.vendor == "postgresql":
            FinishedMessage.objects.filter(id__gt=300).delete()
            history(range(600, 700))
        found = rows(given, spans)

    assert [row["id"] for row in found] == list(range(1, 500))


def test_a_snapshot_that_has_ended_is_named(address, store):
    with snapshot(address) as options:
        given = reader(options)
        spans = given.partitions()

    if address.vendor == "postgresql":
        with pytest.raises(SnapshotGone, match="load again"):
            rows(given, spans)
        with pytest.raises(SnapshotGone, match="load again"):
            given.partitions()
    else:
        assert rows(given, spans) == []


def test_a_snapshot_holds_no_connection_after_its_block(address, store):
    with snapshot(address):
        pass

    if address.vendor == "postgresql":
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND state = %s",
                ["idle in transaction"],
            )
            assert cursor.fetchone() == (0,)


def test_an_address_that_leads_nowhere_is_named():
    with pytest.raises(DatabaseUnreachable, match="env:DELAYEDQ_NOWHERE can't be read"):
        rows(reader({"address": "env:DELAYEDQ_NOWHERE"}))


# Without Spark's workers


def test_a_small_queue_is_read_here(address, store):
    history(range(1, 12), errors='[{"attempt": 1}]')
    live_messages(store)
    given = reader({"address": address.reference}, columns="state,id,errors,finished_at")

    found = read_here(address, given.schema)

    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == rows(given)


def test_an_empty_queue_read_here_is_an_empty_table(address, store):
    table = read_here(address, MESSAGES)

    assert (table.num_rows, table.schema) == (0, to_arrow_schema(MESSAGES, timezone="UTC"))


@pytest.mark.parametrize(("limit", "value"), [("SMALL_ROWS", 5), ("SMALL_BYTES", 100)])
def test_what_is_not_small_is_left_to_spark(address, store, monkeypatch, limit, value):
    history(range(1, 7))
    monkeypatch.setattr(reading, limit, value)

    assert read_here(address, MESSAGES) is None
