"""The same code where executors are processes of their own, and where Spark is reached over the network."""

from __future__ import annotations

import json
import subprocess

import pytest

from delayedq.models import Message
from delayedq.pipeline.models import Load, LoadStaging
from tests.pipeline.queued import history


@pytest.mark.nightly
@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "place", "dies"),
    # A local server of Spark Connect tries each task once.
    [
        ("master", "local-cluster[2,1,1024]", "between"),
        ("remote", "local[2]", "never"),
    ],
)
def test_nothing_is_lost_or_doubled(java, python, request, address, store, tmp_path, kind, place, dies):
    if kind == "remote":
        request.getfixturevalue("connect_port")
    history(range(2001, 2301))
    died = tmp_path / "died"
    died.mkdir()
    command = [python, "-m", "tests.pipeline.elsewhere", kind, place, address.reference, str(died), dies]

    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=540)

    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"payloads": list(range(1000)), "streamed": list(range(2001, 2301)), "connect": kind == "remote"}
    assert len(list(died.glob("died-*"))) == (2 if dies == "between" else 0)
    assert Message.objects.count() == 1000
    assert Load.objects.values_list("state", "inserted", "duplicates").get() == ("loaded", 1000, 0)
    assert not LoadStaging.objects.exists()
