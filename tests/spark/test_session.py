from __future__ import annotations

import pytest

from delayedq.exceptions import JavaMissing
from delayedq.spark import session
from delayedq.spark.java import require_java
from delayedq.spark.session import spark_session, start


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


def test_a_borrowed_session_gets_the_semantics_of_the_pipeline(spark):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")

    with spark_session() as other:
        assert {name: other.conf.get(name) for name in session.SEMANTICS} == session.SEMANTICS
