"""The latency of an idle delayedq, and the queries of an idle worker."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from rich.progress import track

from tests.benchmarks import arena
from tests.benchmarks.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "delayedq"
PINGS = 300
#: Seconds before counting begins: backends report their statistics after at most 10 s.
REPORTED, COUNTED = 12, 60


def latency(_messages: int, rounds: int) -> list[Figure]:
    """Latencies from before the call of enqueue() (or from the scheduled instant) to the first line of the task."""
    figures = []
    with arena.postgresql() as place:
        place.prepare(NAME)
        place.prepare("floor")
        figures += _watermark(place, "idle worker, enqueue to start, PostgreSQL", rounds)
        figures += _latencies(place, "idle worker, enqueue to start, PostgreSQL", "ping", rounds)
        figures += _latencies(place, "scheduled 2 s ahead, lateness, PostgreSQL", "ping_later", rounds)
    with arena.sqlite() as place:
        place.prepare(NAME)
        figures += _latencies(place, "idle worker, enqueue to start, SQLite", "ping", rounds)
    return figures


def _latencies(place: arena.Arena, scenario: str, verb: str, rounds: int) -> list[Figure]:
    median, tail = Figure(scenario, "delayedq, p50", "ms"), Figure(scenario, "delayedq, p99", "ms")
    results = {"BENCHMARK_RESULT": str(place.result)}
    place.result.unlink(missing_ok=True)
    with place.running(NAME, "work", **results):
        _stamped(place, "ping", 20)  # warms up: the worker is running and has opened its connections
        for _ in track(range(rounds), scenario):
            stamps = _stamped(place, verb, PINGS)
            median.rounds.append(statistics.median(stamps))
            tail.rounds.append(statistics.quantiles(stamps, n=100)[-1])
    return [median, tail]


def _watermark(place: arena.Arena, scenario: str, rounds: int) -> list[Figure]:
    """The latency of the floor: a bare offer and a bare claim, each with its flush."""
    median = Figure(scenario, "floor, p50", "ms")
    for _ in track(range(rounds), scenario):
        place.result.unlink(missing_ok=True)
        place.run("floor", "ping", PINGS, BENCHMARK_RESULT=str(place.result))
        median.rounds.append(statistics.median(map(float, place.result.read_text().split())))
    place.result.unlink()
    return [median]


def _stamped(place: arena.Arena, verb: str, count: int) -> list[float]:
    place.run(NAME, verb, count)
    _until(lambda: place.result.exists() and place.result.read_text().count("\n") >= count)
    stamps = [float(line) for line in place.result.read_text().split()]
    place.result.unlink()
    return stamps


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + arena.TOO_LONG
    while not holds():
        assert time.monotonic() < deadline, "the worker does not answer"
        time.sleep(0.1)


def idle(_messages: int, _rounds: int) -> list[Figure]:
    """Transactions of an idle worker and its lease keeper (pg_stat_database); each query is one.

    Autovacuum, whose transactions would count too, is off. The two queries of the statistics are subtracted.
    """
    figure = Figure("an idle worker, one message waits for tomorrow", NAME, "queries/s")
    committed = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{NAME}'"
    with arena.postgresql() as place:
        place.execute("ALTER SYSTEM SET autovacuum = off")
        place.execute("SELECT pg_reload_conf()")
        place.prepare(NAME)
        place.run(NAME, "fill_tomorrow")
        with place.running(NAME, "work"):
            time.sleep(2 * REPORTED)
            ((before,),) = place.execute(committed)
            time.sleep(COUNTED)
            ((after,),) = place.execute(committed)
    figure.rounds.append((after - before) / COUNTED)
    return [figure]


SCENARIOS = {"latency": latency, "idle": idle}
