"""The history becomes a table of partitions while workers and producers use it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.db import connections

from tests.partitioned import partitions, plain_afterwards
from tests.worker.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_conversion_under_load_loses_and_doubles_nothing(alias, environment, tmp_path):
    command = [sys.executable, "-m", "tests.upgrades.partitioning", str(tmp_path)]
    with plain_afterwards(connections[alias]):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

        assert done.returncode == 0, done.stderr + (tmp_path / "audit" / "output.log").read_text()[-5_000:]
        assert {"before", "rest"} < partitions(connections[alias])
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert [*report["ran"]] == ["before", "after"]
    output = (tmp_path / "audit" / "output.log").read_text()
    assert [line for line in output.splitlines() if "delayedq_" in line or "cached plan" in line] == []
