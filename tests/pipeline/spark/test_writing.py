"""The batch writer as a plain object: no Spark."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from delayedq.exceptions import InvalidMessage, InvalidOption, LoadFailed
from delayedq.models import Message
from delayedq.pipeline.models import Load, LoadStaging
from delayedq.pipeline.spark.streaming import DelayedQDataSource
from tests.pipeline.queued import AWKWARD, NOON
from tests.store.given import claim, message, succeed


def writer(address, table, load_id="first", **options):
    """Planned on the driver, and sent to wherever it writes or commits."""
    source = DelayedQDataSource({"address": address.reference, "load_id": load_id, **options})
    planned = source.writer(from_arrow_schema(table.schema), overwrite=False)
    return pickle.loads(pickle.dumps(planned))


def load(address, *partitions, **options):
    """As Spark does when nothing fails."""
    given = writer(address, partitions[0], **options)
    given.commit([given.write(iter(part.to_batches())) for part in partitions])


def offers(numbers, **columns):
    numbers = list(numbers)
    given = {
        "kind": ["app.tasks.send"] * len(numbers),
        "key": [f"key-{number}" for number in numbers],
        "payload": [AWKWARD[number % len(AWKWARD)] for number in numbers],
    }
    return pa.table(given | columns)


def loaded():
    return set(Message.objects.values_list("key", flat=True))


def keys(numbers):
    return {f"key-{number}" for number in numbers}


def counts(load_id="first"):
    """How many rows were offered, became messages, and had a key that was taken."""
    return Load.objects.values_list("state", "row_count", "inserted", "duplicates").get(load_id=load_id)


def test_rows_become_messages(address, store):
    when = pa.array([NOON, None], pa.timestamp("us", "UTC"))
    columns = {"queue": ["mail", "mail"], "priority": [5, None], "max_attempts": [3, 1], "metadata": ["{}", None]}
    load(address, offers(range(2), scheduled_at=when, **columns))

    timed, prompt = Message.objects.order_by("id")
    assert (timed.queue, timed.kind, timed.key, timed.payload) == ("mail", "app.tasks.send", "key-0", AWKWARD[0])
    assert (timed.priority, timed.max_attempts, timed.metadata, timed.attempt) == (5, 3, "{}", 0)
    assert timed.scheduled_at == timed.scheduled_at_initially == NOON
    assert (prompt.priority, prompt.metadata) == (0, None)
    assert abs(prompt.scheduled_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert prompt.scheduled_at == prompt.created_at == timed.created_at


def test_awkward_texts_arrive_as_they_were(address, store):
    load(address, offers(range(len(AWKWARD)), key=AWKWARD, metadata=AWKWARD))

    arrived = Message.objects.values_list("payload", "key", "metadata")
    assert sorted(arrived) == sorted((text, text, text) for text in AWKWARD)


def test_a_worker_claims_what_was_loaded(address, store):
    load(address, offers([1], queue=["mail"]))

    (claimed,) = claim(store, now=None)
    store.settle([succeed(claimed)], "worker")
    assert loaded() == set()


def test_only_the_winners_of_a_partition_become_messages(address, store):
    """The first attempt died after it had staged all its rows: Spark never heard of it."""
    part, other = offers(range(100)), offers(range(100, 150))
    given = writer(address, part)

    given.write(iter(part.to_batches()))
    given.commit([given.write(iter(part.to_batches())), given.write(iter(other.to_batches()))])

    assert Message.objects.count() == 150
    assert counts() == ("loaded", 150, 150, 0)
    assert not LoadStaging.objects.exists()


def test_unkeyed_rows_are_not_doubled_either(address, store):
    part = offers(range(50), key=pa.nulls(50, pa.string()))
    given = writer(address, part)

    given.write(iter(part.to_batches()))
    given.commit([given.write(iter(part.to_batches()))])

    assert Message.objects.count() == 50


def test_a_load_that_is_loaded_is_not_loaded_again(address, store):
    load(address, offers(range(10), key=pa.nulls(10, pa.string())))
    Message.objects.all().delete()

    load(address, offers(range(10), key=pa.nulls(10, pa.string())))

    assert not Message.objects.exists()
    assert not LoadStaging.objects.exists()
    assert counts() == ("loaded", 10, 10, 0)


def test_two_runs_of_a_load_at_once_load_it_once(address, store):
    part = offers(range(10), key=pa.nulls(10, pa.string()))
    runs = [writer(address, part), writer(address, part)]
    staged = [run.write(iter(part.to_batches())) for run in runs]

    for run, message_ in zip(runs, staged, strict=True):
        run.commit([message_])

    assert Message.objects.count() == 10
    assert not LoadStaging.objects.exists()


def test_an_aborted_run_takes_nothing_from_another_of_the_same_load(address, store):
    part = offers(range(10))
    first, second = writer(address, part), writer(address, part)
    staged = second.write(iter(part.to_batches()))

    first.abort([first.write(iter(part.to_batches())), None])
    second.commit([staged])

    assert counts() == ("loaded", 10, 10, 0)


def test_keys_of_live_messages_are_kept_and_counted(address, store):
    store.offer(message("key-3", "before", kind="app.tasks.send"))

    load(address, offers(range(5)), offers([4, 5]))

    assert loaded() == keys(range(6))
    assert Message.objects.get(key="key-3").payload == "before"
    assert counts() == ("loaded", 7, 5, 2)


def test_after_an_abort_nothing_is_left_and_the_load_can_be_run_again(address, store):
    part = offers(range(10))
    given = writer(address, part)

    given.abort([given.write(iter(part.to_batches())), None])
    assert Load.objects.get().state == "aborted"
    assert not LoadStaging.objects.exists()

    load(address, part)
    assert loaded() == keys(range(10))


def test_staged_rows_that_vanish_are_missed(address, store):
    """So they do when PostgreSQL crashes: the table is unlogged."""
    part = offers(range(10))
    given = writer(address, part)
    staged = given.write(iter(part.to_batches()))
    LoadStaging.objects.all().delete()

    with pytest.raises(LoadFailed, match="10 rows were staged, and 0 are there"):
        given.commit([staged])
    assert loaded() == set()
    load(address, part)
    assert loaded() == keys(range(10))


def test_what_a_dead_driver_staged_is_swept_out_after_a_week(address, store):
    part = offers(range(10))
    for load_id in ("old", "recent"):
        dead = writer(address, part, load_id)
        dead.write(iter(part.to_batches()))
    Load.objects.filter(load_id="old").update(started_at=datetime.now(UTC) - timedelta(days=8))

    load(address, part, load_id="new")

    assert set(LoadStaging.objects.values_list("load_id", flat=True)) == {"recent"}


def test_an_empty_frame_is_a_load_too(address, store):
    load(address, offers([]), load_id="nothing")

    assert counts("nothing") == ("loaded", 0, 0, 0)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": [""]}, "key: '' is not 1 to 200 characters"),
        ({"key": ["k" * 201]}, "key: 'kkk.* is not 1 to 200 characters"),
        ({"kind": pa.nulls(1, pa.string())}, "kind: None is not a text"),
        ({"payload": pa.nulls(1, pa.string())}, "payload: None is not a text"),
        ({"payload": ["nul\0"]}, "payload: .* is not no NUL"),
        ({"payload": ["x" * 101]}, "payload: 101 is not at most 100 bytes"),
        ({"priority": [101]}, "priority: 101 is not -100 to 100"),
        ({"priority": [70_000]}, "priority: Integer value 70000 not in range"),
        ({"max_attempts": [0]}, "max_attempts: 0 is not 1 to 32767"),
        ({"queue": ["q" * 201]}, "queue: .* is not 1 to 200 characters"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(address, store, columns, reason):
    part = offers([3], **columns)
    given = writer(address, part, max_payload_bytes="100")

    with pytest.raises(InvalidMessage, match=reason):
        given.write(iter(part.to_batches()))
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"kind": ["a"]}), "payload missing"),
        (pa.table({"kind": ["a"], "payload": ["b"], "colour": ["c"]}), "colour unknown"),
    ],
)
def test_columns_are_checked_when_the_load_is_planned(address, store, table, reason):
    with pytest.raises(InvalidOption, match=reason):
        writer(address, table)
    assert not Load.objects.exists()


@pytest.mark.parametrize("load_id", ["", "x" * 201])
def test_a_load_needs_a_name(load_id):
    source = DelayedQDataSource({"address": "env:NOTHING", "load_id": load_id})

    with pytest.raises(InvalidOption, match="load_id"):
        source.writer(from_arrow_schema(offers([]).schema), overwrite=False)


def test_the_queue_is_never_overwritten():
    with pytest.raises(InvalidOption, match="append"):
        DelayedQDataSource({}).writer(from_arrow_schema(offers([]).schema), overwrite=True)
