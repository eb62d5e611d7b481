"""An archive whose executors are processes of their own, and one over Spark Connect."""

from __future__ import annotations

import subprocess

import pytest

from tests.pipeline.given import history, ids
from tests.pipeline.lake.files import ids as ids_of_lake


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("where", [("--remote", "local[2]"), ("--master", "local-cluster[2,1,1024]")])
def test_what_is_archived_there_is_exact(java, python, connect_port, environment, store, tmp_path, where):
    from delayedq.pipeline.lake.table import LakeTable

    history(60)
    command = [
        python,
        "-m",
        "django",
        "run_pipeline",
        "archive",
        "--older-than",
        "0s",
        "--lake",
        str(tmp_path / "lake"),
        *where,
    ]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=540)

    assert "60 messages are in the lake, 60 rows deleted" in done.stdout, done.stderr[-3000:]
    assert ids_of_lake(LakeTable(str(tmp_path / "lake"))) == list(range(1, 61))
    assert ids() == set()
