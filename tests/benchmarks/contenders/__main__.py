"""Runs one function of one contender, and prints the seconds it took."""

from __future__ import annotations

import argparse
import importlib
import os
import time

from tests.benchmarks.contenders import MARIADB, POSTGRESQL, SQLITE, program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted({*POSTGRESQL, *SQLITE, *MARIADB}))
    parser.add_argument("verb", help="a function of its module, or settings")
    parser.add_argument("count", type=int, nargs="*")
    options = parser.parse_args()
    contender = importlib.import_module(f"tests.benchmarks.contenders.{options.name}")
    if options.verb == "settings":
        print(contender.SETTINGS)  # noqa: T201
        return
    if hasattr(contender, "command"):
        program.become(contender.command(), options.verb, options.count)
    if "BENCHMARK_WARM" in os.environ:  # keeps imports and connections out of the measurement
        contender.enqueue(1)
    began = time.perf_counter()
    getattr(contender, options.verb)(*options.count)
    print(time.perf_counter() - began)  # noqa: T201


if __name__ == "__main__":
    main()
