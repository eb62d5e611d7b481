"""The adapter keeps the harness's protocol for each system, and its workers do not outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connections

from delayedq.models import Worker
from tests.benchmarks.neutral.adapter import MANIFESTS, Figures
from tests.benchmarks.neutral.systems import SYSTEMS, AsyncSystem
from tests.worker.conftest import eventually

on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
METRICS = ["claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth"]


@pytest.fixture
def system():
    return "delayedq"


@pytest.fixture
def adapter(store, system):
    needed = [SYSTEMS[system].package]
    if issubclass(SYSTEMS[system], AsyncSystem):
        needed.append("uvloop")
    try:
        for package in needed:
            version(package)
    except PackageNotFoundError:
        pytest.skip("the dependency group `bench` is not installed")
    server = connections[store.alias].settings_dict
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgres://{server['USER']}@localhost/{server['NAME']}?host={quote(server['HOST'], safe='')}",
        "SAMPLE_EVERY_S": "1",
        "WORKER_COUNT": "2",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.neutral.adapter", system],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()
    Worker.objects.using(store.alias).all().delete()


def read(adapter, until):
    """The records up to the first one of which this is true."""
    records = []
    while not (records and until(records[-1])):
        records.append(json.loads(adapter.stdout.readline()))
    return records


def runs(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ran(record):
    return record.get("metric") == "completion_rate" and record["value"] > 0


def nothing_waits(record):
    return record.get("metric") == "queue_depth" and not record["value"]


@on_postgresql
@pytest.mark.parametrize("system", SYSTEMS)
def test_it_tells_what_it_is_runs_what_it_is_told_samples_and_ends(adapter, store, system):
    (descriptor,) = read(adapter, lambda record: record["kind"] == "descriptor")
    assert descriptor["event_tables"] == json.loads((MANIFESTS / system / "adapter.json").read_text())["event_tables"]
    adapter.stdin.write("ENQUEUE 3\nENQUEUE 4\n")
    adapter.stdin.flush()

    samples = read(adapter, ran) + read(adapter, nothing_waits)
    assert [record["metric"] for record in samples[-6:]] == METRICS
    with connections[store.alias].cursor() as cursor:
        for table in descriptor["event_tables"]:
            cursor.execute(f"SELECT count(*) FROM {table}")
    adapter.send_signal(signal.SIGTERM)
    assert adapter.wait(30) == 0


@on_postgresql
def test_its_workers_die_with_it(adapter, store):
    adapter.stdin.write("ENQUEUE 1\n")
    adapter.stdin.flush()
    read(adapter, ran)
    pids = list(Worker.objects.using(store.alias).values_list("pid", flat=True))
    assert pids
    adapter.kill()
    adapter.wait()
    eventually(lambda: not any(runs(pid) for pid in pids))


def test_percentiles_are_those_of_the_last_seconds():
    figures = Figures()
    figures.add([number / 1000 for number in range(1, 1001)])

    assert figures.percentiles(0.5, 0.95, 0.99) == [500.0, 950.0, 990.0]
    assert Figures().percentiles(0.5) == [0.0]
