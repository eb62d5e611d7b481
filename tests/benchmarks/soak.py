"""What grows while workers run for long: their memory, dead rows, and the size of the queue's table.

    uv run --no-sync python -m tests.benchmarks.soak [--minutes 60] [--rate 300] [--held 10]

A producer offers `--rate` messages a second, in equal parts due now, due within ten seconds, failing once, and offered
again by a key; two worker processes run them. From the middle on, somebody holds a snapshot for `--held` minutes. A
line is printed each minute: messages that have ended, how late the slowest hundredth of the last minute began, the
memory of all processes of `run_workers` (PSS, in MB), and of the table its dead rows and its size with indexes (MB).
"""

from __future__ import annotations

import argparse
import re
import time
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks import arena
from tests.benchmarks.alone import snapshot
from tests.benchmarks.volume import children

NAME = "delayedq"
MINUTE = """
SELECT count(*), coalesce(1000 * percentile_cont(0.99) WITHIN GROUP (
    ORDER BY extract(epoch FROM started_at - greatest(scheduled_at, created_at))), 0)::float8
FROM delayedq_finishedmessage WHERE finished_at >= now() - interval '1 minute'
"""
TABLE = """
SELECT n_dead_tup, pg_total_relation_size(relid) / 1e6 FROM pg_stat_user_tables WHERE relname = 'delayedq_message'
"""
ENDED = "SELECT count(*), count(*) FILTER (WHERE outcome <> 'succeeded') FROM delayedq_finishedmessage"


def memory(pid: int) -> float:
    """MB of this process and all below it; what they share is counted once."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss: +(\d+)", rollup, re.MULTILINE)
    return (int(found[1]) / 1000 if found else 0.0) + sum(map(memory, children(pid)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--held", type=int, default=10)
    options = parser.parse_args()
    begins, ends = options.minutes // 2, options.minutes // 2 + options.held
    with arena.postgresql() as place, ExitStack() as held:
        place.prepare(NAME)
        with place.running(NAME, "work", BENCHMARK_FLAGS="--processes 2") as workers:
            with place.running(NAME, "trickle", options.rate, 60 * options.minutes):
                print("minute  last minute  p99 ms  memory  dead rows  table")  # noqa: T201
                for minute in range(1, options.minutes + 1):
                    if minute == begins:
                        held.enter_context(snapshot(place))
                    if minute == ends:
                        held.close()
                    time.sleep(60)
                    ((count, late),), ((dead, size),) = (place.execute(one, NAME) for one in (MINUTE, TABLE))
                    line = f"{minute:6} {count:12,} {late:7.0f} {memory(workers.pid):7.1f} {dead:10,} {size:6.1f}"
                    print(line, flush=True)  # noqa: T201
            time.sleep(15)
        print("ended, of these not succeeded:", *place.execute(ENDED, NAME)[0])  # noqa: T201
        print("left:", *place.execute("SELECT count(*) FROM delayedq_message", NAME)[0])  # noqa: T201


if __name__ == "__main__":
    main()
