"""Graphile Worker, on Node.js."""

from __future__ import annotations

import json
import os

from tests.benchmarks.contenders import program

#: One of the four settings on its page on performance. Delays of 250 ms are as fast; ten jobs at once, with a local
#: queue of 11 and delays of 25 ms, have a tenth of the rate, and the defaults less.
WORKER = {
    "concurrentJobs": 24,
    "maxPoolSize": 25,
    "localQueue": {"size": 500},
    "completeJobBatchDelay": 0,
    "failJobBatchDelay": 0,
}
SETTINGS = "Node.js, 24 jobs at once, localQueue 500, completeJobBatchDelay 0; no history"


def command() -> list[str]:
    os.environ["BENCHMARK_OPTIONS"] = json.dumps(WORKER)
    return program.node("graphile-worker")
