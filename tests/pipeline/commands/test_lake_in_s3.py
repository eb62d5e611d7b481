"""A lake in S3 of which Spark knows nothing: its files go through a directory of this machine."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.commands.replay import run_replay
from delayedq.pipeline.commands.report import run_report
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.management.commands.run_pipeline import Command
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.opening import Pipeline
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import DAY, NOW, history, ids
from tests.pipeline.lake.engines import polars
from tests.pipeline.lake.files import ids as ids_of_lake
from tests.pipeline.lake.s3 import bucket, options_of, serving

EACH = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def path(monkeypatch):
    with serving() as endpoint:
        for name, value in options_of(endpoint).items():
            monkeypatch.setenv(name, value)
        yield f"{bucket(endpoint, 'history')}/lake"


@ONE_STORE
def test_each_step_works_on_it(spark, store, path, tmp_path, settings, capsys):
    settings.DELAYEDQ = {"LAKE": path, "LAKE_STAGING": str(tmp_path)}
    for first in (1, 4):
        history(3, first=first, days=1)
        call_command("run_pipeline", "archive", "--older-than", "0s")
    assert (ids(), ids_of_lake(LakeTable(path)), polars(path)) == (set(), EACH, EACH)

    call_command("run_pipeline", "compact")
    call_command("run_pipeline", "check")
    call_command("run_pipeline", "restore", "--ids", "2,3")
    call_command("run_pipeline", "report", "--output", str(tmp_path / "report"))

    told = capsys.readouterr().out
    assert "6 messages in 2 files are as the books say" in told
    assert "report.html" in told
    assert ids() == {2, 3}
    assert [made.name for made in tmp_path.iterdir()] == ["report"]


@ONE_STORE
def test_what_is_compared_is_what_the_store_holds(spark, store, address, path, tmp_path):
    history(6)
    staging = tmp_path / "staging"
    staging.mkdir()

    def tell(batch):
        if batch.state == ArchiveState.WRITTEN and batch.attempt == 1:
            table = LakeTable(path)
            for info in table.stored(f"messages/{batch.directory}"):
                table.put(info.path, BytesIO(b"spoiled"))

    [done] = Archiving(spark, store, address, path, tell, address, str(staging)).run(NOW)

    assert (done.row_count, done.deleted, ArchiveBatch.objects.get().attempt) == (6, 6, 2)
    assert ids_of_lake(LakeTable(path)) == EACH


@ONE_STORE
def test_a_spark_that_does_not_reach_it_is_told_what_to_set(spark, store, path):
    history(3)

    with pytest.raises(CommandError, match="LAKE_STAGING") as failed:
        call_command("run_pipeline", "archive", "--older-than", "0s", "--lake", path)

    assert "Nothing is lost" in str(failed.value)
    assert len(ids()) == 3
    assert not Path("s3:").exists()


SINCE = str((NOW - 3 * DAY).date())


@ONE_STORE
@pytest.mark.parametrize(
    ("step", "arguments", "days"),
    [
        (run_report, ["report", "--since", f"{SINCE}T18:00Z"], (3, 2, 1)),
        (run_report, ["report", "--only-lake", "--since", SINCE, "--until", str(NOW.date())], (3, 2, 1)),
        (run_replay, ["replay", "--since", SINCE, "--state", "succeeded"], (3,)),
    ],
    ids=["report", "report of the lake", "replay"],
)
def test_what_is_about_some_days_copies_the_files_of_these(
    spark, store, address, path, tmp_path, step, arguments, days
):
    history(6, days=6)
    staging = {name: tmp_path / name for name in ("of the archive", "of the step")}
    for directory in staging.values():
        directory.mkdir()
    list(Archiving(spark, store, address, path, here=address, staging=str(staging["of the archive"])).run(NOW))
    pipeline = Pipeline(spark, store, address, address, print, path, str(staging["of the step"]))
    output = ["--output", str(tmp_path / "report")] if step is run_report else []
    options = Command().create_parser("manage.py", "run_pipeline").parse_args([*arguments, *output])

    step(pipeline, vars(options))

    copied = [file.parent.name for file in staging["of the step"].rglob("*.parquet")]
    assert sorted(copied) == [f"day={(NOW - number * DAY).date()}" for number in days]
