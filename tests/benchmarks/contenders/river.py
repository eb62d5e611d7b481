"""River, in Go."""

from __future__ import annotations

from tests.benchmarks.contenders import program

SETTINGS = "Go, one process on all cores, MaxWorkers 2000, FetchCooldown 2 ms as in its own benchmark, InsertManyFast"


def command() -> list[str]:
    return program.go("river")
