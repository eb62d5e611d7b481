"""What an index of arguments would cost and gain: `python -m tests.benchmarks.argument_index BINARIES`.

BINARIES: the directory of a PostgreSQL that has pg_trgm (that of the wheel has no extensions). The index is a GIN of
trigrams of payloads: the only one that takes every payload, since those of bare queues need not be JSON, and JSON may
have what jsonb refuses. Prints, for a message, the bytes of log (WAL) of its offer, of its end and of the VACUUM after
it, with and without the index; and what a search for one message among many reads.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import django

from tests.server import USER, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES, LIVE = 10_000, 500_000
#: By name, the indexes that are tried.
INDEXES = {
    "none": "",
    "GIN, fastupdate on (its default)": "USING gin (payload gin_trgm_ops)",
    "GIN, fastupdate off": "USING gin (payload gin_trgm_ops) WITH (fastupdate = off)",
}
CITIES = ("Berlin", "Newark", "Honolulu", "Reykjavik", "Sao Paulo")
FILL = """
INSERT INTO delayedq_message (queue, kind, key, priority, max_attempts, payload, scheduled_at, scheduled_at_initially,
    created_at, attempt, generation)
SELECT 'mail', 'tests.app.tasks.echo', NULL, 0, 1, '{"args": [' || n || ', "' || md5(n::text) || '"], "kwargs": {}}',
    now() + n * interval '1 second', now(), now(), 0, 0
FROM generate_series(1, %s) AS n
"""
#: As a page of a search reads them: 10,000 in the order of due time, of which those are chosen that have the text.
PAGE = """
SELECT id FROM (
    SELECT id, payload FROM delayedq_message
    WHERE queue = 'mail' AND priority = 0 AND scheduled_at > (
        SELECT min(scheduled_at) FROM delayedq_message WHERE queue = 'mail' AND priority = 0
    ) + (%s - 1) * interval '1 second'
    ORDER BY scheduled_at, id LIMIT 10000
) AS page WHERE strpos(payload, %s) > 0
"""
BY_INDEX = "SELECT id FROM delayedq_message WHERE payload LIKE '%%' || %s || '%%'"


def main(binaries: Path) -> None:
    with served(binaries):
        execute("CREATE EXTENSION pg_trgm")
        for name, index in INDEXES.items():
            prices = [price(index) for _ in range(3)]
            medians = (sorted(part)[1] for part in zip(*prices, strict=True))
            tell(" | ".join([name, *(f"{number:,.0f}" for number in medians)]))
        for line in gain():
            tell(line)


@contextmanager
def served(binaries: Path) -> Iterator[None]:
    """A server of its own, with all tables. Its log has no images of pages: their number depends on checkpoints."""
    with postgresql_socket(durable=True, binaries=binaries) as socket:
        url = f"postgres://{USER}@/postgres?host={quote(socket, safe='')}"
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        execute("ALTER SYSTEM SET full_page_writes = off")
        execute("SELECT pg_reload_conf()")
        yield


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def execute(sql: str, *parameters: object) -> list[tuple[object, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


def price(index: str) -> tuple[float, ...]:
    """Bytes of log of a message: of its offer, of its end, and of the VACUUM after it."""
    from delayedq.store import default_store
    from tests.app.tasks import echo
    from tests.worker.attempts import drained

    execute("TRUNCATE delayedq_message, delayedq_finishedmessage")
    execute("DROP INDEX IF EXISTS by_arguments")
    if index:
        execute(f"CREATE INDEX by_arguments ON delayedq_message {index}")
    calls = [((f"{CITIES[n % 5]} UA{n} {n * 7919 % 100_003} Ada Lovelace",), {}) for n in range(MESSAGES)]
    steps = (
        lambda: offer(echo, calls),
        lambda: drained(default_store()),
        lambda: execute("VACUUM delayedq_message"),
    )
    found: list[float] = []
    for act in steps:
        before = log()
        act()
        found.append((log() - before) / MESSAGES)
    return tuple(found)


def offer(task, calls) -> None:
    for start in range(0, MESSAGES, 100):
        task.enqueue_many(calls[start : start + 100])


def log() -> int:
    """Bytes of log so far."""
    ((size,),) = execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
    return int(size)  # type: ignore[call-overload]


def gain() -> Iterator[str]:
    """What a search for one message among LIVE reads, in blocks of 8 kB."""
    execute("TRUNCATE delayedq_message, delayedq_finishedmessage")
    execute("DROP INDEX IF EXISTS by_arguments")
    execute(FILL.replace("%s", str(LIVE)))
    execute("VACUUM ANALYZE delayedq_message")
    ((wanted,),) = execute("SELECT md5(%s)", str(LIVE // 2))
    pages = [blocks(PAGE, start, wanted) for start in range(0, LIVE, 10_000)]
    whole = [round(sum(part)) for part in zip(*pages, strict=True)]
    yield f"a page of 10,000: {pages[1]}; all {len(pages)} pages: {whole}"
    began = time.perf_counter()
    execute(f"CREATE INDEX by_arguments ON delayedq_message {INDEXES['GIN, fastupdate off']}")
    yield f"made in {time.perf_counter() - began:.1f} s"
    execute("VACUUM ANALYZE delayedq_message")
    yield f"by the index: {blocks(BY_INDEX, wanted)}; of two letters: {blocks(BY_INDEX, wanted[:2])}"
    yield f"sizes: {execute(SIZES)}"


SIZES = """SELECT pg_size_pretty(pg_table_size('delayedq_message')), pg_size_pretty(pg_relation_size('by_arguments'))"""


def blocks(sql: str, *parameters: object) -> tuple[float, float]:
    """Blocks that a statement reads, and its milliseconds."""
    ((plan,),) = execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *parameters)
    top = (loads(plan) if isinstance(plan, str) else plan)[0]  # type: ignore[index]
    return top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"], top["Execution Time"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
