"""delayedq on PostgreSQL under conditions that make queues slow, as the ratio to a clean run in the same round."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import psycopg
from rich.progress import track

from tests.benchmarks import arena
from tests.benchmarks.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "delayedq"

MESSAGE = """
INSERT INTO delayedq_message (queue, kind, priority, attempt, max_attempts, generation, payload,
    scheduled_at, scheduled_at_initially, created_at, leased_until, lease_token)
SELECT 'default', 'nobody.knows', {priority}, 0, 8, 0, '[[1],{{}}]', at, at, now(), {lease}
FROM generate_series(1, {count}) AS number, LATERAL (SELECT now() + {when} AS at) AS due
"""
HISTORY = """
INSERT INTO delayedq_finishedmessage (id, finished_at, started_at, scheduled_at, scheduled_at_initially, created_at,
    priority, attempts, max_attempts, outcome, queue, kind, payload)
SELECT -number, at, at, at, at, at, 0, 1, 8, 'succeeded', 'default', 'nobody.knows', '[[1],{}]'
FROM generate_series(1, 5000000) AS number, LATERAL (SELECT now() - number * interval '0.1 s' AS at) AS ended
"""
SPAN = """
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8
FROM delayedq_finishedmessage WHERE id > 0
"""
#: Rates of the first and the last fifth of the messages.
FIFTHS = """
WITH ended AS (SELECT finished_at, ntile(5) OVER (ORDER BY finished_at) AS fifth FROM delayedq_finishedmessage)
SELECT extract(epoch FROM max(finished_at) FILTER (WHERE fifth = 1) - min(finished_at))::float8,
    extract(epoch FROM max(finished_at) - min(finished_at) FILTER (WHERE fifth = 5))::float8
FROM ended
"""
EMPTY = "TRUNCATE delayedq_message, delayedq_finishedmessage"


class Bench:
    """The tables of one database, and workers that drain them."""

    def __init__(self, place: arena.PostgreSQLArena) -> None:
        self.place = place
        place.prepare(NAME)

    def execute(self, statement: str) -> list[tuple]:
        return self.place.execute(statement, NAME)

    def rate(self, messages: int, *, given: str = "", **environment: str) -> float:
        """Messages per second, from the first start to the last end, after `given` filled the tables."""
        self.execute(EMPTY)
        if given:
            self.execute(given)
            self.execute("VACUUM ANALYZE")
        self.execute("CHECKPOINT")  # keeps the writes of the set-up out of the measurement
        self.place.run(NAME, "fill", messages, **environment)
        self.place.run(NAME, "drain", messages, **environment)
        ((count, seconds),) = self.execute(SPAN)
        assert count >= messages, f"{count} of {messages} ended"
        return count / seconds


@contextmanager
def bench() -> Iterator[Bench]:
    with arena.postgresql() as place:
        yield Bench(place)


def _beside_clean(scenario: str, rounds: int, clean: Callable[[], float], tried: Callable[[], float]) -> list[Figure]:
    """The ratio of the two rates, for each round."""
    figure = Figure(scenario, NAME, "of a clean run")
    for _ in track(range(rounds), scenario):
        base = clean()
        figure.rounds.append(tried() / base)
    return [figure]


def _against(scenario: str, given: str = "", **environment: str) -> Callable[[int, int], list[Figure]]:
    def measure(messages: int, rounds: int) -> list[Figure]:
        with bench() as table:
            return _beside_clean(
                scenario, rounds, lambda: table.rate(messages), lambda: table.rate(messages, given=given, **environment)
            )

    return measure


def _first_and_last_fifth(scenario: str, messages: int, rounds: int, *, held: bool) -> list[Figure]:
    figure = Figure(scenario, NAME, "last fifth / first fifth")
    with bench() as table:
        for _ in track(range(rounds), scenario):
            table.execute(EMPTY)
            table.place.run(NAME, "fill", messages)
            table.execute("VACUUM ANALYZE")
            with snapshot(table.place) if held else nullcontext():
                table.place.run(NAME, "drain", messages)
            ((first, last),) = table.execute(FIFTHS)
            figure.rounds.append(first / last)
    return [figure]


@contextmanager
def snapshot(place: arena.PostgreSQLArena) -> Iterator[None]:
    """Another client's REPEATABLE READ transaction, whose snapshot keeps ended rows from being vacuumed."""
    host, user = place.environment["PGHOST"], place.environment["PGUSER"]
    with psycopg.connect(host=host, user=user, dbname=NAME) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM delayedq_message")
        yield
        connection.rollback()


def held(messages: int, rounds: int) -> list[Figure]:
    """Drain 3 * `messages` (default 300,000) while another transaction holds a snapshot."""
    return _first_and_last_fifth("a snapshot held elsewhere", 3 * messages, rounds, held=True)


def million_due(messages: int, rounds: int) -> list[Figure]:
    return _first_and_last_fifth("a long backlog, 10 times as many", 10 * messages, rounds, held=False)


def wal(messages: int, rounds: int) -> list[Figure]:
    """Bytes of write-ahead log over the life of a message with 200 bytes of payload, offers in batches."""
    figure = Figure("WAL over a message's life", NAME, "bytes")
    with bench() as table:
        for _ in track(range(rounds), figure.scenario):
            table.execute(EMPTY)
            table.execute("CHECKPOINT")
            ((before,),) = table.execute("SELECT pg_current_wal_insert_lsn()::text")
            text = '"' + "x" * 190 + '"'
            for verb in ("fill", "drain"):
                table.place.run(NAME, verb, messages, BENCHMARK_TASK="nothing", BENCHMARK_ARGUMENT=text)
            ((size,),) = table.execute(f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn")
            figure.rounds.append(float(size) / messages)
    return [figure]


def _kind(task: str, argument: float, count: int, threads: int, processes: int, ideal: float) -> Figure:
    """The ideal time for `count` tasks of this kind, divided by the time they took."""
    figure = Figure(f"{count:,} tasks, {task} {argument:g} ms", f"{processes} x {threads} threads", "of the ideal")
    flags = f"--processes {processes} --threads {threads}"
    with bench() as table:
        rate = table.rate(count, BENCHMARK_TASK=task, BENCHMARK_ARGUMENT=str(argument), BENCHMARK_FLAGS=flags)
    figure.rounds.append(ideal * rate / count)
    return figure


def kinds(_messages: int, _rounds: int) -> list[Figure]:
    """1 ms of Python on two processes; 20 ms of sleep on 50 threads; 2,000 coroutines of 100 ms at once."""
    return [
        _kind("busy", 1, 20_000, 1, 2, 10.0),
        _kind("sleepy", 20, 20_000, 50, 1, 8.0),
        _kind("dozing", 100, 20_000, 4, 1, 1.0),
    ]


SCENARIOS = {
    "coroutines": _against("`async def` tasks", BENCHMARK_TASK="coroutine"),
    "keyed": _against("every message has a key", BENCHMARK_KEYED="1"),
    "logging": _against("the default LOGGING of Django", BENCHMARK_LOGGING="default"),
    "logging-debug": _against("the same with DEBUG=True", BENCHMARK_LOGGING="default", BENCHMARK_DEBUG="1"),
    "two-processes": _against("two worker processes", BENCHMARK_FLAGS="--processes 2"),
    "queues": _against("10,000 queues", BENCHMARK_QUEUES="10000"),
    "future": _against(
        "1,000,000 future messages in 10 priorities",
        MESSAGE.format(
            priority="number % 10 - 5",
            count=1_000_000,
            when="interval '1 day' + number * interval '1 s'",
            lease="NULL, NULL",
        ),
    ),
    "in-flight": _against(
        "5,000 slow messages in flight at the head",
        MESSAGE.format(priority=0, count=5000, when="-interval '1 hour'", lease="now() + interval '1 hour', 1"),
    ),
    "history": _against("5,000,000 rows of history", HISTORY),
    "held": held,
    "backlog": million_due,
    "wal": wal,
    "kinds": kinds,
}
