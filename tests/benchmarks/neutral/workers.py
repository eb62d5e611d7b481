"""Runs the workers of one system, a coroutine each, until SIGTERM."""

from __future__ import annotations

import sys

import uvloop

from tests.benchmarks.neutral.systems import SYSTEMS, AsyncSystem


def main() -> None:
    system = SYSTEMS[sys.argv[1]]()
    assert isinstance(system, AsyncSystem)
    uvloop.run(system.work())


if __name__ == "__main__":
    main()
