"""What an operator reads when Spark or a file fails: one sentence, on each command."""

from __future__ import annotations

import subprocess

import pytest
from django.core.management import CommandError, call_command
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from delayedq.exceptions import PipelineError
from delayedq.pipeline import commands
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.spark.session import explained
from tests.pipeline.given import NOW, finished, history, ids

ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
FULL = OSError(28, "No space left on device", "/srv/lake/messages/part-0")


@pytest.mark.parametrize("step", ["load", "archive", "report", "replay"])
def test_a_full_disk_is_one_sentence_that_says_what_is_left(monkeypatch, step):
    def run(*_):
        raise FULL

    monkeypatch.setattr(commands, "_run", run)
    with pytest.raises(PipelineError, match=r"/srv/lake/messages/part-0.*make room, and run it again") as failed:
        commands.run(step, {}, print)

    assert "\n" not in str(failed.value)
    assert str(failed.value).endswith(commands.SAFE[step])


@pytest.mark.parametrize(
    "said",
    ["Mkdirs failed to create file:/srv/lake/messages/a-1/_temporary", "/srv/lake/messages: Read-only file system"],
)
def test_a_place_that_is_read_only_has_its_cure(said):
    told = str(explained(OSError(said), "archive", commands.SAFE["archive"]))

    assert "Let the user of this process and of the executors write it, and run it again." in told


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


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o82.getResult"),
        PySparkRuntimeError(errorClass="CANNOT_OPEN_SOCKET", messageParameters={"errors": "Connection refused"}),
        EOFError(),
    ],
)
def test_an_answer_of_java_that_breaks_off_is_said_as_what_it_is(monkeypatch, error):
    """Which of these PySpark raises depends on where Java was when it ended."""

    def run(*_):
        raise error

    monkeypatch.setattr(commands, "_run", run)
    with pytest.raises(PipelineError, match="Java, in which Spark runs, has ended"):
        commands.run("report", {}, print)


@pytest.mark.parametrize(
    "error",
    [
        Py4JError(
            "An error occurred while calling o1.none. Trace:\npy4j.Py4JException: Method none([]) does not exist"
        ),
        EOFError("Compressed file ended before the end-of-stream marker was reached"),
    ],
)
def test_other_errors_that_look_like_it_keep_their_text(error):
    assert str(error).partition(".")[0] in str(explained(error, "load", commands.SAFE["load"]))


#: Java is killed while it is to answer, and then it is asked again. Each error is told by its one sentence.
KILLED = """
import os
import threading
import time
from pathlib import Path
from sys import argv

import django
django.setup()

from pyspark.sql.functions import udf

from delayedq.exceptions import PipelineError
from delayedq.pipeline import commands
from delayedq.pipeline.spark.session import start
from tests.pipeline.killing import JAVA, kill

begun = Path(argv[1])
spark = start("local[1]")


@udf("long")
def wait(value):
    begun.touch()
    time.sleep(600)
    return value


def end_java():
    while not begun.exists():
        time.sleep(0.02)
    assert kill(os.getpid(), JAVA)


threading.Thread(target=end_java).start()
for ask in (lambda *_: spark.range(1).select(wait("id")).toArrow(), lambda *_: spark.range(3).count()):
    commands._run = ask
    try:
        commands.run("report", {}, print)
    except PipelineError as error:
        print(error)
os._exit(0)
"""


@ONE_STORE
def test_a_java_that_is_killed_is_said_as_what_it_is(java, python, environment, tmp_path):
    done = subprocess.run(
        [python, "-c", KILLED, str(tmp_path / "begun")], capture_output=True, text=True, check=False, env=environment
    )

    said = done.stdout.splitlines()
    assert len(said) == 2, done.stderr[-3000:]
    for line in said:
        assert line.startswith("The report failed: Java, in which Spark runs, has ended. It was killed, or ran out of")
        assert line.endswith("Nothing was changed.")
