"""Whether Spark would find a Java that is new enough, known without starting it."""

from __future__ import annotations

import pytest

from delayedq.exceptions import JavaMissing
from delayedq.pipeline.spark.java import require_java

#: What a `java -version` of each vendor begins with, and the release of Java.
OPENJDK = 'openjdk version "{}" 2023-10-17'
ORACLE = 'java version "{}"'


@pytest.fixture
def java(monkeypatch, tmp_path):
    """Put a script on PATH in place of Java: it says that, and ends with that code."""

    def put(said, code=0):
        script = tmp_path / "bin" / "java"
        script.parent.mkdir()
        script.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
        script.chmod(0o755)
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(script.parent))
        return script

    return put


@pytest.mark.parametrize(
    ("said", "release"), [(OPENJDK.format("11.0.21"), 11), (ORACLE.format("1.8.0_392"), 8), (OPENJDK.format("16"), 16)]
)
def test_too_old_a_java_is_told_with_its_release_and_the_cure(java, said, release):
    place = java(said)
    with pytest.raises(JavaMissing, match=rf"needs Java 17 or newer, and {place} is Java {release}\. .*apt install"):
        require_java()


def test_a_java_that_does_not_run_is_told_with_what_it_says(java):
    java("Unable to locate a Java Runtime.", code=1)
    with pytest.raises(JavaMissing, match=r"does not run: Unable to locate a Java Runtime\. On Debian: apt install"):
        require_java()


@pytest.mark.parametrize("said", [OPENJDK.format("17.0.9"), OPENJDK.format("25"), "of nobody knows what"])
def test_others_are_for_spark_to_judge(java, said):
    java(said)
    require_java()


def test_the_file_beside_java_tells_its_release_so_that_it_need_not_run(java):
    place = java("", code=1)
    release = place.parents[1] / "release"
    release.write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.21.1"\n')
    require_java()
    release.write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(JavaMissing, match="is Java 11"):
        require_java()
