"""What a claim from channels costs, statement by statement: `python -m tests.benchmarks.limits_profile`, on Linux.

One thread settles a batch and claims the next, with two batches in flight, as a worker does: first of messages without
a channel, then of as many in 1,000 channels with concurrency 2. All figures are processor time, of this process or of
its session in the server, so they hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict, deque
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from delayedq.store.protocol import ClaimRequest
from tests.benchmarks.database import migrated
from tests.benchmarks.limits import EMPTY, query

MESSAGES, BATCH = 20_000, 400
LEASE = timedelta(seconds=60)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=MESSAGES)
    given = arguments.parse_args()
    with migrated():
        from tests.app import tasks

        plain = (((n,), {}) for n in range(given.messages))
        report("without a channel", lambda: tasks.nothing.enqueue_bulk(plain), given.messages, from_lanes)
        limited = (((n % 1_000,), {}) for n in range(given.messages))
        report("1,000 channels", lambda: tasks.call.enqueue_bulk(limited), given.messages, from_channels())


def report(what: str, fill, messages: int, claim) -> None:
    query(EMPTY)
    fill()
    query("VACUUM ANALYZE")
    ((pid,),) = query("SELECT pg_backend_pid()")
    spent: dict[str, float] = defaultdict(float)
    began, server = time.thread_time(), server_seconds(pid)
    measured_here = {"_batch": measured(pid, spent), "batches": measured_together(pid, spent)}
    with patch.multiple(kind_of_database(), **measured_here):
        trips = drain(messages, claim)
    here, there = time.thread_time() - began, server_seconds(pid) - server
    sys.stdout.write(f"{what}: per claim of {BATCH}: worker {here / trips * 1e3:.1f} ms, ")
    sys.stdout.write(f"server {there / trips * 1e3:.1f} ms\n")
    for name, seconds in sorted(spent.items(), key=lambda one: -one[1])[:4]:
        sys.stdout.write(f"    {name:<18}{seconds / trips * 1e3:6.1f} ms\n")


def drain(messages: int, claim) -> int:
    in_flight: deque[list] = deque()
    trips = done = 0
    while done < messages or in_flight:
        ended = [finished(one) for one in in_flight.popleft()] if len(in_flight) > 1 or done >= messages else []
        claimed = claim(ended)
        trips += 1
        done += len(claimed)
        if claimed:
            in_flight.append(claimed)
    return trips


def finished(claimed):
    from delayedq.core.lifecycle import FinalOutcome
    from delayedq.store.protocol import Finish

    return Finish(claimed, FinalOutcome.SUCCEEDED, started=0.001, finished=0.0008)


def from_lanes(ended):
    from delayedq.store import default_store
    from delayedq.store.protocol import Lane

    return (
        default_store().settle_and_claim(ended, ClaimRequest([Lane("default", 0, None)], BATCH, LEASE, "bench")).claimed
    )


def from_channels():
    from delayedq.limits import rules_for
    from delayedq.limits.channels import Channels
    from delayedq.limits.requests import ChannelRequest
    from delayedq.store import default_store
    from delayedq.store.claim_tokens import new_token

    rules = rules_for(lambda _: True)

    def claim(ended):
        request = ChannelRequest(rules, BATCH, LEASE, "bench", new_token())
        return Channels.of(default_store()).settle_and_claim(ended, "bench", request)[1].claimed

    return claim


def kind_of_database():
    from delayedq.store import default_store

    return type(default_store().database)


def measured(pid: int, spent: dict[str, float]):
    """`PostgreSQLDatabase._batch`, which notes what the session spends on each statement, by the name of that."""
    from delayedq.limits import postgresql as channels_sql
    from delayedq.store.postgresql import sql

    names = {text: name for module in (sql, channels_sql) for name, text in vars(module).items() if type(text) is str}
    names |= {channels_sql.deal(in_pairs=in_pairs): "DEAL" for in_pairs in (True, False)}
    batch = kind_of_database()._batch

    def timed(database, statement, parameters):
        before = server_seconds(pid)
        rows = batch(database, statement, parameters)
        spent[names.get(statement, "look")] += server_seconds(pid) - before
        return rows

    return timed


def measured_together(pid: int, spent: dict[str, float]):
    """The same of `PostgreSQLDatabase.batches`: what ends, and the lock of the next claim."""
    batches = kind_of_database().batches

    def timed(*arguments):
        before = server_seconds(pid)
        answers = batches(*arguments)
        spent["FINISH and LOCK"] += server_seconds(pid) - before
        return answers

    return timed


def server_seconds(pid: int) -> float:
    return int(Path("/proc", str(pid), "schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    main()
