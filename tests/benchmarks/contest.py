"""delayedq, the floor and the peers, one after another in each round, so that noise affects all alike."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from rich.progress import track

from tests.benchmarks import arena
from tests.benchmarks.contenders import MARIADB, POSTGRESQL, SQLITE
from tests.benchmarks.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: About this many seconds per contender and round; slow ones get fewer messages, not longer rounds.
ROUND = 6.0
TRIAL = 300

CORES = os.cpu_count() or 1
#: How the fastest use the whole machine: so many processes, with these variables. One process of some uses all cores.
WHOLE = {
    "floor": (CORES, {}),
    "delayedq_defaults": (1, {"BENCHMARK_FLAGS": f"--processes {CORES}"}),
    "delayedq": (1, {"BENCHMARK_FLAGS": f"--processes {CORES}"}),
    "graphile_worker": (CORES, {}),
    "pg_boss": (CORES, {}),
    "river": (1, {}),
    "pgqueuer": (CORES, {}),
    "awa": (1, {}),
}


def drain(messages: int, rounds: int) -> list[Figure]:
    """No-op tasks that wait in the table, one worker process, each with its default history."""
    with arena.postgresql() as place:
        return _contest("drain, PostgreSQL", place, POSTGRESQL, rounds, _drained(place, messages))


def drain_whole(messages: int, rounds: int) -> list[Figure]:
    """The same for the fastest, each with the whole machine: a process per core, or one that uses them all."""
    with arena.postgresql() as place:

        def rate(name: str, count: int) -> float:
            processes, environment = WHOLE[name]
            place.run(name, "fill", count)
            place.settle()
            return count / place.lap_time_together(name, processes, count, **environment)

        figures = _contest("drain, the whole machine", place, tuple(WHOLE), rounds, _fitted(rate, CORES * messages))
    for figure in figures:
        processes, environment = WHOLE[figure.name]
        figure.note = environment.get("BENCHMARK_FLAGS", f"{processes} processes" if processes > 1 else "one process")
    return figures


def drain_sqlite(messages: int, rounds: int) -> list[Figure]:
    """The same on SQLite, where huey delivers at most once, and delayedq at least once."""
    with arena.sqlite() as place:
        return _contest("drain, SQLite", place, SQLITE, rounds, _drained(place, messages))


def drain_mariadb(messages: int, rounds: int) -> list[Figure]:
    with arena.mariadb() as place:
        return _contest("drain, MariaDB", place, MARIADB, rounds, _drained(place, messages))


def enqueue(messages: int, rounds: int) -> list[Figure]:
    """Enqueue one by one, with one commit each."""
    with arena.postgresql() as place:

        def rate(name: str, count: int) -> float:
            return count / place.seconds(name, "enqueue", count)

        return _contest("enqueue one by one", place, POSTGRESQL, rounds, _fitted(rate, max(messages // 50, TRIAL)))


def enqueue_many(messages: int, rounds: int) -> list[Figure]:
    """Enqueue in batches of up to 10,000, in the fastest way that each peer documents."""
    with arena.postgresql() as place:

        def rate(name: str, count: int) -> float:
            return count / place.seconds(name, "fill", count)

        return _contest("enqueue many", place, POSTGRESQL, rounds, _fitted(rate, messages))


def _drained(place: arena.Arena, messages: int) -> Callable[[str], float]:
    def rate(name: str, count: int) -> float:
        place.run(name, "fill", count)
        place.settle()
        return count / place.lap_time(name, "drain", count)

    return _fitted(rate, messages)


def _fitted(rate: Callable[[str, int], float], most: int) -> Callable[[str], float]:
    """Messages per second of a contender. Two trials find how many messages it gets: small runs are inaccurate."""
    fitting: dict[str, int] = {}

    def fitted(name: str) -> float:
        if name not in fitting:
            fitting[name] = TRIAL
            for _ in range(2):
                fitting[name] = max(TRIAL, min(most, int(ROUND * rate(name, fitting[name]))))
        return rate(name, fitting[name])

    return fitted


def _contest(
    scenario: str, place: arena.Arena, names: tuple[str, ...], rounds: int, measure: Callable[[str], float]
) -> list[Figure]:
    """The contenders that can run; one that can't be installed or fails is left out, and the reason is printed."""
    figures = {name: Figure(scenario, name, "/s", note=note) for name, note in _prepared(place, names)}
    for number in track(range(rounds), scenario):
        names = list(figures)
        for name in names[number:] + names[:number]:  # nobody always comes after the same one
            try:
                figures[name].rounds.append(measure(name))
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                print(f"{name} is left out of {scenario!r}: {error} {getattr(error, 'stderr', '')}")  # noqa: T201
                del figures[name]
    return list(figures.values())


def _prepared(place: arena.Arena, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            note = place.run(name, "settings").strip()
            place.prepare(name)
        except subprocess.SubprocessError as error:
            print(f"{name} is left out: {error} {str(getattr(error, 'stderr', ''))[-500:]}")  # noqa: T201
        else:
            yield name, note
