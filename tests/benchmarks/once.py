"""Exactly-once tasks on PostgreSQL, beside transactions of the same shape without a queue."""

from __future__ import annotations

from rich.progress import track

from tests.benchmarks import arena
from tests.benchmarks.figures import Figure

#: The contender and its verb.
VERBS = {"floor": "drain_once", "delayedq": "drain"}
NOTES = {
    "floor": "per message, on a connection per thread: BEGIN, one prepared statement that ends it, COMMIT",
    "delayedq": "@task(exactly_once=True), one process",
}


def exactly_once(messages: int, rounds: int) -> list[Figure]:
    """No-op tasks (default: 10,000) whose end commits in a transaction of each, with 4 threads and with 16."""
    with arena.postgresql() as place:
        for name in VERBS:
            place.prepare(name)
        return [figure for threads in (4, 16) for figure in _compared(place, messages // 10, rounds, threads)]


def _compared(place: arena.Arena, count: int, rounds: int, threads: int) -> list[Figure]:
    scenario = f"exactly once, {threads} threads"
    figures = [Figure(scenario, name, "/s", note=NOTES[name]) for name in VERBS]
    options = {"BENCHMARK_THREADS": str(threads), "BENCHMARK_FLAGS": f"--threads {threads}"}
    for _ in track(range(rounds), scenario):
        for figure in figures:
            place.run(figure.name, "fill", count, BENCHMARK_TASK="once")
            figure.rounds.append(count / place.lap_time(figure.name, VERBS[figure.name], count, **options))
    return figures


SCENARIOS = {"exactly-once": exactly_once}
