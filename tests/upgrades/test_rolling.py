"""Workers of two versions side by side on one database, and of one while the schema changes under it, both ways."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.db import connections

from tests.worker.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_an_upgrade_under_load_and_one_step_back_lose_and_double_nothing(alias, environment, later, tmp_path):
    command = [sys.executable, "-m", "tests.upgrades.rolling", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)

    assert done.returncode == 0, done.stderr + (tmp_path / "audit" / "output.log").read_text()[-5_000:]
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert [*report["ran"]] == ["before", "migrated", "side by side", "back"]
    assert min(map(min, report["ran"].values())) > 0
    assert report["wrote"] > 0
    assert "Unapplying delayedq.0002_column... OK" in done.stderr
    output = (tmp_path / "audit" / "output.log").read_text()
    assert [line for line in output.splitlines() if "delayedq_" in line or "cached plan" in line] == []
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM delayedq_message")
        assert cursor.fetchone() == (0,)
