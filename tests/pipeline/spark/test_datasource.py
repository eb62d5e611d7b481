"""`format("delayedq")` on a Spark that runs failed tasks again."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from delayedq.models import Message
from delayedq.pipeline.models import Load, LoadStaging
from delayedq.pipeline.spark import register
from delayedq.pipeline.spark.reading import snapshot
from delayedq.pipeline.spark.schema import MESSAGES
from tests.pipeline.dying import DyingDataSource
from tests.pipeline.queued import history, live_messages


@pytest.fixture
def queue_on_spark(spark):
    register(spark)
    spark.dataSource.register(DyingDataSource)
    return spark


def offers(spark, count, partitions=3):
    return spark.range(0, count, numPartitions=partitions).selectExpr(
        "'app.tasks.send' AS kind", "'key-' || id AS key", "'[' || id || ']' AS payload"
    )


def write(frame, address, load_id="first", source="delayedq", **options):
    writer = frame.write.format(source).mode("append").options(address=address.reference, load_id=load_id, **options)
    writer.save()


def loaded():
    return sorted(int(payload.strip("[]")) for payload in Message.objects.values_list("payload", flat=True))


def test_a_frame_of_messages_in_all_states(queue_on_spark, address, store):
    history(range(1, 300))
    live_messages(store)

    with snapshot(address) as options:
        frame = queue_on_spark.read.format("delayedq").options(**options, partitions=3).load()
        states = {row.state: row["count"] for row in frame.groupBy("state").count().collect()}
        # Filters are Spark's: one query leaves the next alone.
        assert [frame.filter("id = 7 AND state = 'succeeded'").count(), frame.count()] == [1, 302]

    assert states == {"succeeded": 299, "waiting": 2, "leased": 1}
    assert frame.schema == MESSAGES


def test_an_empty_queue_is_an_empty_frame(queue_on_spark, address, store):
    with snapshot(address) as options:
        frame = queue_on_spark.read.format("delayedq").options(**options, columns="id").load()

        assert (frame.columns, frame.collect()) == (["id"], [])


@pytest.mark.parametrize(
    ("alias", "dies"),
    [("postgresql", "between"), ("postgresql", "after"), ("sqlite", "between"), ("mariadb", "between")],
    indirect=["alias"],
)
def test_a_task_that_dies_doubles_and_loses_nothing(queue_on_spark, address, store, tmp_path, dies):
    write(offers(queue_on_spark, 1000), address, source="dying", dies=dies, remember=str(tmp_path))

    assert len(list(tmp_path.glob("died-*"))) == 3
    assert loaded() == list(range(1000))
    assert Load.objects.values_list("state", "row_count", "inserted", "duplicates").get() == ("loaded", 1000, 1000, 0)
    assert not LoadStaging.objects.exists()


def test_a_commit_that_dies_is_made_up_for_by_the_next_run(queue_on_spark, address, store, tmp_path):
    with pytest.raises(PySparkException, match="died in commit"):
        write(offers(queue_on_spark, 100), address, source="dying", dies="commit", remember=str(tmp_path))
    assert loaded() == []
    assert not LoadStaging.objects.exists()

    write(offers(queue_on_spark, 100), address)
    write(offers(queue_on_spark, 100), address)

    assert loaded() == list(range(100))


def test_what_was_loaded_is_read_back(queue_on_spark, address, store):
    write(offers(queue_on_spark, 500), address)
    frame = queue_on_spark.read.format("delayedq").options(address=address.reference, states="waiting").load()

    assert sorted(int(row.payload.strip("[]")) for row in frame.collect()) == list(range(500))


def test_a_row_that_is_no_message_is_named_and_nothing_is_loaded(queue_on_spark, address, store):
    frame = offers(queue_on_spark, 10).selectExpr("kind", "payload", "IF(payload = '[7]', '', key) AS key")

    with pytest.raises(PySparkException, match="key: '' is not 1 to 200 characters"):
        write(frame, address)
    assert loaded() == []


def test_the_password_is_neither_in_plans_nor_in_errors(queue_on_spark, tmp_path, caplog):
    path = tmp_path / "url"
    path.write_text("postgresql://delayedq:geheim%2F1@127.0.0.1:1/delayedq")
    frame = queue_on_spark.read.format("delayedq").options(address=f"file:{path}").load()

    with pytest.raises(PySparkException) as refused:
        frame.collect()

    plans = frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    assert f"No connection to the database of file:{path}" in str(refused.value)
    for text in (str(refused.value), plans, caplog.text):
        assert "geheim" not in text


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"colour": "red"}, "colour: unknown; known are"),
        ({"states": "done"}, "states: done unknown; known are"),
        ({"columns": "id,colour"}, "columns: colour unknown; known are"),
        ({"address": "nowhere"}, "An address is env:NAME"),
    ],
)
def test_a_wrong_option_is_one_line_that_says_what_is_right(queue_on_spark, option, says):
    reader = queue_on_spark.read.format("delayedq").options(**{"address": "env:NOTHING", **option})

    with pytest.raises(PySparkException) as refused:
        reader.load().collect()

    told = str(refused.value).partition("SQLSTATE:")[0]  # which Spark adds on a line of its own
    assert says in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) == 1, told
