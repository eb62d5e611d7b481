"""delayedq with what Django has by default: no OPTIONS of its PostgreSQL backend."""

from __future__ import annotations

import os

os.environ["BENCHMARK_DEFAULTS"] = "1"

from tests.benchmarks.contenders.delayedq import drain, enqueue, fill, prepare

__all__ = ["SETTINGS", "drain", "enqueue", "fill", "prepare"]

SETTINGS = "run_workers --drain, one process, 4 threads, history kept; the database as Django has it by default"
