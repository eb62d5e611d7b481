"""What the write-ahead log of a message consists of on PostgreSQL, and what other tables would save.

    uv run --group test python -m tests.benchmarks.log_bytes

Messages with 200 bytes of payload are offered, claimed and ended in batches of 512, without images of whole pages,
whose number depends on when a checkpoint was. Prints bytes and records for a message, as `pg_waldump` tells them; then
bytes with other tables, which triggers and indexes imitate: a trigger itself writes nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import NamedTuple

from tests.benchmarks.argument_index import execute, served, tell
from tests.server import bundled

BINARIES = bundled(18)
BATCH, BATCHES = 512, 40
MESSAGES = BATCH * BATCHES
PAYLOAD = '{"args": ["' + "x" * 183 + '"]}'
LIVE, ENDED = "delayedq_message", "delayedq_finishedmessage"
#: Bytes; what has less of them is not printed.
SMALLEST = 1.0
RECORD = re.compile(r"rmgr: (\S+) +len \(rec/tot\): +\d+/ +(\d+), .*?desc: (\S+)(?:.*?rel \d+/\d+/(\d+))?")
RELATIONS = "SELECT pg_relation_filenode(oid)::text, relname FROM pg_class WHERE relname LIKE 'delayedq%'"
TRIGGER = """
CREATE FUNCTION vary_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {change} RETURN new; END $$;
CREATE TRIGGER vary BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION vary_{table}();
"""
BRIN = f"""
DO $$ BEGIN EXECUTE (SELECT 'DROP INDEX ' || indexname FROM pg_indexes WHERE tablename = '{ENDED}'
    AND indexdef LIKE '%btree (finished_at)'); END $$;
CREATE INDEX ON {ENDED} USING brin (finished_at);
"""
NO_KEY = f"ALTER TABLE {ENDED} DROP CONSTRAINT {ENDED}_pkey;"
NULLABLE = "".join(
    f"ALTER TABLE {table} ALTER scheduled_at_initially DROP NOT NULL, ALTER created_at DROP NOT NULL;"
    for table in (LIVE, ENDED)
)
ONE_TIME, BRIEF = "new.scheduled_at_initially := NULL; new.created_at := NULL;", "new.payload := '';"
#: Stands for a number of four bytes, which a table of its own would explain.
NUMBER = "abc"


class Variant(NamedTuple):
    """How the tables differ, and what is written into their rows."""

    name: str
    sql: str = ""
    live: str = ""
    ended: str = ""
    queue: str = "default"
    kind: str = "shop.tasks.send_reminder"
    worker: str = "web-7c9f8d-x2x9k:12345:3f9a"


AS_IT_IS = Variant("as it is")
VARIANTS = [
    AS_IT_IS,
    Variant("numbers in place of queue and task", queue=NUMBER, kind=NUMBER),
    Variant("a number in place of the worker", worker=NUMBER),
    Variant("one time in place of three that are equal", NULLABLE, ONE_TIME, ONE_TIME),
    Variant("BRIN in place of the index of ends", BRIN),
    Variant("no primary key of the history", NO_KEY),
    Variant("no payload in the history", ended=BRIEF),
    Variant("all of these", NULLABLE + BRIN + NO_KEY, ONE_TIME, ONE_TIME + BRIEF, NUMBER, NUMBER, NUMBER),
]


def main() -> None:
    """Run for each variant in a process of its own: Django can be configured only once per process."""
    if sys.argv[1:]:
        inside(int(sys.argv[1]))
        return
    for number in range(len(VARIANTS)):
        subprocess.run([sys.executable, "-m", "tests.benchmarks.log_bytes", str(number)], check=True)


def inside(number: int) -> None:
    variant = VARIANTS[number]
    with served(BINARIES):
        vary(variant)
        live(variant)  # the pages of the live table are then used again
        execute("VACUUM delayedq_message")
        began = position()
        live(variant)
        found = records(began, position())
        tell(f"{variant.name}: {sum(size for size, _ in found.values()):,.0f} bytes")
        for what, (size, times) in sorted(found.items(), key=lambda item: -item[1][0]) if number == 0 else ():
            if size >= SMALLEST:
                tell(f"  {size:5.0f} bytes in {times:.2f} records: {what}")


def vary(variant: Variant) -> None:
    if variant.sql:
        execute(variant.sql)
    for table, change in ((LIVE, variant.live), (ENDED, variant.ended)):
        if change:
            execute(TRIGGER.format(table=table, change=change))


def live(variant: Variant) -> None:
    """Messages from their offer to their end."""
    from delayedq.core.lifecycle import FinalOutcome
    from delayedq.store import default_store
    from delayedq.store.protocol import ClaimRequest, Finish, Lane, Offer

    store, done = default_store(), []
    offer = Offer(queue=variant.queue, kind=variant.kind, payload=PAYLOAD)
    for _ in range(BATCHES):
        store.offer_many([offer] * BATCH)
    request = ClaimRequest([Lane(variant.queue, 0)], BATCH, timedelta(seconds=60), variant.worker)
    while claimed := store.settle_and_claim(done, request).claimed:
        done = [Finish(one, FinalOutcome.SUCCEEDED, 0.001, 0.0) for one in claimed]


def records(began: str, ended: str) -> dict[str, tuple[float, float]]:
    """Bytes and records for a message, by what is written where."""
    execute("SELECT pg_switch_wal()")
    ((data,),) = execute("SHOW data_directory")
    names = dict(execute(RELATIONS))
    command = [BINARIES / "pg_waldump", "--path", f"{data}/pg_wal", "--start", began, "--end", ended]
    sizes: Counter[str] = Counter()
    times: Counter[str] = Counter()
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for manager, size, what, relation in filter(None, map(of_line, log.splitlines())):
        part = f"{manager} {what} {names.get(relation, '')}".strip()
        sizes[part] += int(size)
        times[part] += 1
    return {part: (sizes[part] / MESSAGES, times[part] / MESSAGES) for part in sizes}


def of_line(line: str) -> tuple[str, ...] | None:
    found = RECORD.match(line)
    return found.groups("") if found else None


def position() -> str:
    ((at,),) = execute("SELECT pg_current_wal_insert_lsn()::text")
    return str(at)


if __name__ == "__main__":
    main()
