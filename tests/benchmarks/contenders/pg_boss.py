"""pg-boss, on Node.js."""

from __future__ import annotations

import json
import os

from tests.benchmarks.contenders import program

WORK = {"batchSize": 2000, "localConcurrency": 2, "burstWhenBatchFull": True, "pollingIntervalSeconds": 0.5}
SETTINGS = "Node.js, batchSize 2000, localConcurrency 2, burstWhenBatchFull; one completion per batch"


def command() -> list[str]:
    os.environ["BENCHMARK_OPTIONS"] = json.dumps(WORK)
    return program.node("pg-boss")
