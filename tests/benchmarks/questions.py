"""Small measurements that decided the design of tables and statements on PostgreSQL; results are printed one by one.

uv run --group test --group bench python -m tests.benchmarks.questions
"""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from delayedq.store.protocol import ClaimRequest
from tests.benchmarks import arena

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "delayedq"
LEASE = timedelta(seconds=60)
BATCH = 512

HEAP_ONLY = """
SELECT n_tup_hot_upd::float8 / n_tup_upd, pg_relation_size(relid) / 1e6
FROM pg_stat_user_tables WHERE relname = 'delayedq_message'
"""


def main() -> None:
    """Run in a separate process, as contenders do: Django can be configured only once per process."""
    if sys.argv[1:] == ["inside"]:
        from tests.benchmarks.contenders import delayedq  # noqa: F401  configures Django

        for question in (heap_only, one_trip_or_two, dead_rows, many_lanes):
            question()
        return
    with arena.postgresql() as place:
        place.prepare(NAME)
        command = [sys.executable, "-m", "tests.benchmarks.questions", "inside"]
        subprocess.run(command, env={**place.environment, "PGDATABASE": NAME}, check=True)


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def heap_only() -> None:
    """Payloads of 20 to 2,000 bytes arrive as fast as they are settled, so pages are reused."""
    from delayedq.store import default_store
    from delayedq.store.protocol import Lane, Offer

    store, done = default_store(), []
    for number in range(400):
        sizes = (20 + (number * 37 + one * 101) % 1980 for one in range(BATCH))
        store.offer_many(Offer(queue="mixed", kind="k", payload=f'"{"x" * size}"') for size in sizes)
        done = _ended(store.settle_and_claim(done, ClaimRequest([Lane("mixed", 0)], BATCH, LEASE, "w")).claimed)
    store.settle(done, "w")
    time.sleep(11)  # backends report their statistics after at most 10 s
    ((ratio, megabytes),) = _query(HEAP_ONLY)
    say(f"heap-only claims, mixed payloads in steady state: {ratio:.0%}, the table has {megabytes:.0f} MB")


def one_trip_or_two() -> None:
    """`settle_and_claim` compared with a settle followed by a claim."""
    from delayedq.store import default_store
    from delayedq.store.protocol import Lane

    store, lanes = default_store(), [Lane("default", 0)]

    def together(done: list) -> list:
        return store.settle_and_claim(done, ClaimRequest(lanes, BATCH, LEASE, "w")).claimed

    def apart(done: list) -> list:
        store.settle(done, "w")
        return store.claim(ClaimRequest(lanes, BATCH, LEASE, "w"))

    rounds = [(_lived(together), _lived(apart)) for _ in range(5)]
    one, two = map(min, zip(*rounds, strict=True))
    say(f"one tick {one:.1f} us per message, two statements {two:.1f} us (the best of 5)")


def _lived(round_trip: Callable[[list], list], batches: int = 60) -> float:
    """Microseconds per message."""
    from tests.benchmarks.contenders import delayedq

    delayedq.nothing.enqueue_bulk(((number,), {}) for number in range(batches * BATCH))
    _query("VACUUM ANALYZE delayedq_message")
    began, done = time.perf_counter(), []
    while claimed := round_trip(done):
        done = _ended(claimed)
    return (time.perf_counter() - began) / batches / BATCH * 1e6


def dead_rows() -> None:
    """A scan over 1,000,000 ended rows that another snapshot keeps, and a claim from the watermark."""
    import psycopg

    from delayedq.store import default_store
    from delayedq.store.protocol import Lane
    from tests.benchmarks.contenders import delayedq

    store = default_store()
    with psycopg.connect() as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM delayedq_message")
        delayedq.nothing.enqueue_bulk(((number,), {}) for number in range(1_000_000))
        _query("DELETE FROM delayedq_message")
        delayedq.nothing.enqueue(1)
        watermark = datetime.now(UTC) - timedelta(seconds=1)
        scan = _timed(store.scan)
        say(f"1,000,000 dead rows: a scan takes {scan:.0f} ms, a second one {_timed(store.scan):.0f} ms")
        claim = _timed(lambda: store.claim(ClaimRequest([Lane("default", 0, watermark)], 1, LEASE, "w")))
        say(f"... a claim from its floor {claim:.1f} ms")
    _query("TRUNCATE delayedq_message, delayedq_finishedmessage")


def many_lanes() -> None:
    """The memory that 1,000 queues take in a worker, and the time of a scan of them."""
    from delayedq.store import default_store
    from delayedq.store.protocol import Offer
    from delayedq.worker.lanes import Lanes

    store, lanes = default_store(), Lanes()
    store.offer_many(Offer(queue=f"queue-{number}", kind="k", payload="1") for number in range(1000))
    tracemalloc.start()
    lanes.scanned(store.scan(), time.monotonic())
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    scan = _timed(store.scan)
    plan = _timed(lanes.plan)
    claim = _timed(lambda: store.claim(ClaimRequest(lanes.plan(), BATCH, LEASE, "w")))
    say(f"1,000 queues: {size / 1000:.0f} kB, a scan {scan:.1f} ms, a plan {plan:.2f} ms, a claim {claim:.1f} ms")


def _ended(claims: list) -> list:
    from delayedq.core.lifecycle import FinalOutcome
    from delayedq.store.protocol import Finish

    return [Finish(claimed, FinalOutcome.SUCCEEDED, 0.001, 0.0) for claimed in claims]


def _timed(act: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _query(statement: str) -> list[tuple]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


if __name__ == "__main__":
    main()
