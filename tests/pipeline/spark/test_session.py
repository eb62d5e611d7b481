from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from delayedq.exceptions import JavaMissing
from delayedq.pipeline.spark import session
from delayedq.pipeline.spark.java import require_java
from delayedq.pipeline.spark.session import spark_session, start


def test_without_java_the_message_names_debians_package(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(JavaMissing, match="apt install openjdk-17-jre-headless"):
        require_java()


def test_a_java_home_without_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaMissing, match=str(tmp_path)):
        require_java()


def test_a_session_has_a_master_or_is_remote():
    with pytest.raises(ValueError, match="not both"):
        start("local[2]", remote="sc://spark.example")


def test_the_session_of_this_process_is_used_and_stays(spark):
    with spark_session() as other:
        assert other.conf.get("spark.sql.session.timeZone") == "UTC"

    assert spark.range(3).count() == 3


def test_the_session_of_another_thread_is_used_and_stays(spark):
    """It is active in the thread that made it alone."""
    with ThreadPoolExecutor() as threads:
        assert threads.submit(borrowed).result() is spark

    assert spark.range(3).count() == 3


def borrowed():
    with spark_session() as session:
        return session


def test_a_borrowed_session_gets_the_semantics_of_the_pipeline(spark):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")

    with spark_session() as other:
        assert {name: other.conf.get(name) for name in session.SEMANTICS} == session.SEMANTICS


LISTENING = """
from pathlib import Path
from delayedq.pipeline.spark.session import spark_session

with spark_session(remote="local[1]") as spark:
    assert spark.range(3).count() == 3
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if local.endswith(":3A9A") and state == "0A":  # 15002, listens
                print(local)
"""


def test_a_connect_server_that_is_started_here_listens_to_this_machine_only(java, python, connect_port):
    done = subprocess.run([python, "-c", LISTENING], capture_output=True, text=True, check=False, timeout=540)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()
    assert all(address.endswith("0100007F:3A9A") for address in done.stdout.split()), done.stdout
    assert "Warning" not in done.stderr


SHORT = """
from delayedq.pipeline.spark.session import spark_session

with spark_session("local[1]") as spark:
    assert spark.range(3).selectExpr("sum(id)").first()[0] == 3
"""
REFERENCE = Path(__file__).parents[3] / "docs" / "pipeline-reference.md"


@pytest.mark.slow
@pytest.mark.nightly
def test_java_takes_its_classes_from_an_archive_as_the_reference_says(java, python, tmp_path):
    """They are told apart from those of JARs by Java's log."""
    make, use = re.findall(r'^export SPARK_SUBMIT_OPTS="(.+)"$', REFERENCE.read_text(), re.MULTILINE)
    log = tmp_path / "classes"
    for options, logged in ((make, ""), (use, f" -Xlog:class+load:file={log}")):
        given = options.replace("/var/cache/shop", str(tmp_path)) + logged
        environment = os.environ | {"SPARK_SUBMIT_OPTS": given}
        done = subprocess.run([python, "-c", SHORT], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    loaded = re.findall(r" (org\.apache\.spark\.\S+) source: (.+)", log.read_text())
    shared = [name for name, source in loaded if source.startswith("shared objects file")]
    assert len(shared) > len(loaded) / 2 > 500
