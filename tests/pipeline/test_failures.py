"""What an operator reads when Spark or a file fails: one sentence, on each command."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from delayedq.exceptions import PipelineError
from delayedq.pipeline import steps
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.steps.archive import Archiving
from tests.pipeline.given import NOW, finished, history, ids

ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
FULL = OSError(28, "No space left on device", "/srv/lake/messages/part-0")


@pytest.mark.parametrize("step", ["load", "archive", "report", "replay"])
def test_a_full_disk_is_one_sentence_that_says_what_is_left(monkeypatch, step):
    def run(*_):
        raise FULL

    monkeypatch.setattr(steps, "_run", run)
    with pytest.raises(PipelineError, match=r"/srv/lake/messages/part-0.*make room, and run it again") as failed:
        steps.run(step, {}, print)

    assert "\n" not in str(failed.value)
    assert str(failed.value).endswith(steps.SAFE[step])


@ONE_STORE
def test_a_spoiled_file_is_named(spark, store, address, tmp_path):
    history(3)
    lake = Lake(spark, str(tmp_path / "lake"))
    list(Archiving(spark, store, address, lake.path, here=address).run(NOW))
    for file in (tmp_path / "lake" / "messages").rglob("*.parquet"):
        file.write_bytes(b"spoiled")
        file.with_name(f".{file.name}.crc").unlink()

    with pytest.raises(CommandError, match=r"messages/\S+parquet.* spoiled") as failed:
        call_command("run_pipeline", "report", "--lake", lake.path, "--only-lake", "--output", str(tmp_path / "report"))

    assert "\n" not in str(failed.value)
    assert str(failed.value).endswith("Nothing was changed.")


@ONE_STORE
def test_a_lake_that_can_not_be_written_leaves_all_rows(spark, store, tmp_path):
    finished(1).save()
    (tmp_path / "file").write_text("no directory")

    with pytest.raises(CommandError, match="Nothing is lost") as failed:
        call_command("run_pipeline", "archive", "--lake", str(tmp_path / "file" / "lake"), "--older-than", "0s")

    assert "\n" not in str(failed.value)
    assert ids() == {1}
