"""`run_pipeline upgrade-lake`: what an older delayedq has written, with manifests and no table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import functions as F

from delayedq.models import FinishedMessage
from delayedq.pipeline.commands import lake as upgrade
from delayedq.pipeline.lake.columns import VERSION
from delayedq.pipeline.spark import register
from tests.pipeline.archives import ONE_STORE, Killed, archived
from tests.pipeline.given import NOW, finished, history
from tests.pipeline.given import ids as ids_of_table

pytestmark = ONE_STORE


@pytest.fixture
def former(spark, address, lake):
    """A lake of two batches, as it was written before: the first one in its second attempt."""
    history(6, days=2)
    rows = former_rows(spark, address)
    for attempt, name, condition in ((1, "a", "id < 3"), (2, "a", "id < 4"), (1, "b", "id >= 4")):
        place = f"{lake.path}/messages/batch={name}-{attempt}"
        rows.where(condition).write.partitionBy("day").parquet(place)
    for name, attempt in (("a", 1), ("a", 2), ("b", 1)):
        manifest = Path(lake.path, "manifests", f"batch={name}-{attempt}", "part-0.json")
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"batch": name, "attempt": attempt, "schema_version": 1}) + "\n")
    about = Path(lake.path, "about", "part-0.txt")
    about.parent.mkdir()
    about.write_text("delayedq history\n")
    FinishedMessage.objects.all().delete()
    return lake


def former_rows(spark, address):
    register(spark)
    table = spark.read.format("delayedq").options(address=address.reference, states="succeeded").load()
    return table.withColumns({"schema_version": F.lit(1), "day": F.to_date("finished_at")}).persist()


def run(lake, capsys, *step):
    call_command("run_pipeline", *step, "--lake", lake.path)
    return capsys.readouterr().out


def test_it_is_converted_with_all_its_rows_and_then_archives_go_on(former, capsys, archiving):
    with pytest.raises(CommandError, match="run_pipeline upgrade-lake"):
        call_command("run_pipeline", "archive", "--lake", former.path, "--older-than", "0s")

    told = run(former, capsys, "upgrade-lake")

    assert "Batch a: 3 messages" in told
    assert "Batch b: 3 messages" in told
    assert archived(former) == [1, 2, 3, 4, 5, 6]
    rows = former.history().select("batch", "schema_version").distinct().collect()
    assert sorted(map(tuple, rows)) == [(1, 1), (2, 1)]
    assert not former.table.is_former()
    assert "nothing to convert" in run(former, capsys, "upgrade-lake")
    finished(9).save()
    list(archiving().run(NOW))
    assert archived(former) == [1, 2, 3, 4, 5, 6, 9]
    assert former.history().where("id = 9").first().schema_version == VERSION


def test_rows_that_the_table_still_has_are_deleted_and_not_written_twice(former, capsys, archiving):
    history(6, days=2)
    run(former, capsys, "upgrade-lake")
    [done] = archiving().run(NOW)
    assert (done.deleted, ids_of_table()) == (6, set())
    assert archived(former) == [1, 2, 3, 4, 5, 6]


def test_a_conversion_that_was_killed_is_finished_by_the_next(former, capsys, monkeypatch):
    real = upgrade._converted

    def convert_one(pipeline, batch):
        if batch.batch == "b":
            raise Killed
        return real(pipeline, batch)

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_converted", convert_one)
        with pytest.raises(Killed):
            run(former, capsys, "upgrade-lake")
    capsys.readouterr()
    told = run(former, capsys, "upgrade-lake")
    assert "Batch a" not in told
    assert archived(former) == [1, 2, 3, 4, 5, 6]
